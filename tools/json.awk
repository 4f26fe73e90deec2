# Reads JSON: read_json(FILE, "1:") puts a value into J, as in J["1:plan.units.0.name"], and the length of an array or object into N.
# Numbers are numbers; true, false and null are text. It goes from token to token, line by line, as strings do not cross lines.

function fail(why) { print "error: " why > "/dev/stderr"; exit 2 }
function put(value) {
  J[place()] = value
}
function place(  here) {
  here = json_depth == 0 ? json_root : json_name[json_depth] (json_depth == 1 ? "" : ".") (json_kind[json_depth] == "{" ? json_key[json_depth] : json_count[json_depth])
  json_count[json_depth]++
  json_key[json_depth] = ""
  return here
}
function read_json(file, prefix,   line, c, text, here, status) {
  json_root = prefix; json_depth = 0
  while ((status = (getline line < file)) > 0)
    while (line !~ /^[ \t\r]*$/) {
      sub(/^[ \t\r,:]+/, "", line)
      c = substr(line, 1, 1)
      if (c == "{" || c == "[") {
        here = place(); json_depth++; json_kind[json_depth] = c; json_name[json_depth] = here; json_count[json_depth] = 0; json_key[json_depth] = ""
        line = substr(line, 2)
      } else if (c == "}" || c == "]") {
        N[json_name[json_depth]] = json_count[json_depth]; json_depth--; line = substr(line, 2)
      } else if (c == "\"") {
        if (!match(line, /^"([^"\\]|\\.)*"/)) fail("'" file "' is no JSON: " line)
        text = substr(line, 2, RLENGTH - 2); line = substr(line, RLENGTH + 1)
        if (json_kind[json_depth] == "{" && json_key[json_depth] == "") json_key[json_depth] = text; else put(text)
      } else if (match(line, /^[-+.0-9A-Za-z]+/)) {
        text = substr(line, 1, RLENGTH); put(text ~ /^[-+.0-9]/ ? text + 0 : text); line = substr(line, RLENGTH + 1)
      } else if (c != "") fail("'" file "' is no JSON: " line)
    }
  close(file)
  if (status < 0 || json_depth != 0 || json_count[0]++ < 0) fail("'" file "' is no whole JSON")
}
