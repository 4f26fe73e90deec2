# Reads JSON with jq: read_json(FILE, "1:") puts each value into J, for example J["1:plan.units.0.name"], and the length of each array and object
# into N. Numbers are numbers; true, false and null are text. Numbers become text with 15 digits: mawk would write 3e9 for a large one.

BEGIN { CONVFMT = OFMT = "%.15g" }
function fail(why) { print "error: " why > "/dev/stderr"; exit 2 }
function read_json(file, prefix,   command, line, cell) {
  command = file
  gsub(/'/, "'\\''", command)
  command = "jq -r 'paths as $p | getpath($p) | [($p | join(\".\")), type, if type == \"object\" or type == \"array\" then length elif . == null then \"null\" else . end] | @tsv' 2>/dev/null <'" command "'"
  while ((command | getline line) > 0) {
    split(line, cell, "\t")
    if (cell[2] == "object" || cell[2] == "array") N[prefix cell[1]] = cell[3]; else J[prefix cell[1]] = cell[2] == "number" ? cell[3] + 0 : cell[3]
  }
  if (close(command) != 0) fail("'" file "' is no JSON, or jq is not installed")
}
