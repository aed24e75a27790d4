# prints how many different words FILE has: sh count.sh FILE
tr ' ' '\n' < "$1" | uniq | wc -l
