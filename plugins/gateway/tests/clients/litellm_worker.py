"""Completions through the real litellm, in the environment of its own that its pins need: a request a line, an answer a
line.
"""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
out, sys.stdout = sys.stdout, sys.stderr

import litellm  # noqa: E402

litellm.telemetry = False
print(json.dumps({"ready": True}), file=out, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    stream = asked.pop("stream")
    try:
        answer = litellm.completion(model="openai/policy", stream=stream, **asked)
        if stream:
            answer = litellm.stream_chunk_builder(list(answer), messages=asked["messages"])
        said = {"message": answer.choices[0].message.model_dump(exclude_none=True)}
    except Exception as error:
        said = {"error": type(error).__name__, "status": getattr(error, "status_code", None), "text": str(error)}
    print(json.dumps(said), file=out, flush=True)
