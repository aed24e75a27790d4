"""SmolLM2-135M-Instruct behind llama.cpp's server, in a process of its own: prints its URL, and serves until its standard
input ends.
"""

import sys

import xllamacpp
from ferrule_test_assets import smollm2_gguf

settings = xllamacpp.CommonParams()
settings.model.path = str(smollm2_gguf())
settings.n_ctx, settings.n_parallel, settings.cpuparams.n_threads = 2048, 2, 1
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
sys.stdin.read()
