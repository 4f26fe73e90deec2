# Prints a header of the API for Doxygen, which knows fewer kinds of comments than this project has. tools/reference runs this as its filter.
#   - The lines `// ...` at the top of a file describe the file.
#   - A comment `// ...` after code, also with more lines below it, belongs to that code.
#   - A comment `///` belongs to the declaration after it. If that is a function, it also belongs to the functions directly below, up to the next
#     comment or empty line; else to the declarations directly below that it names.
#   - Indented lines of a comment, such as those of a table, begin a new line.
#   - Backquotes mark names. All other characters are meant literally.
# Each line is printed as one line, so that the line numbers in Doxygen's warnings are right.

function literal(text) {
  gsub(/[\\@#%&<>"$~]/, "\\\\&", text)
  gsub(/::/, "\\::", text)
  gsub(/\*\//, "*\\/", text)
  return text
}
function text_of(comment,    parts, count, i, text) {
  count = split(comment, parts, "`")
  for (i = 1; i <= count; ++i) text = text (i % 2 == 0 ? "<tt>" literal(parts[i]) "</tt>" : literal(parts[i]))
  return text
}
function names(comment, name) { return name != "" && comment ~ ("(^|[^A-Za-z0-9_])" name "([^A-Za-z0-9_]|$)") }
# The name that a line declares: the word before the first parenthesis, or before `=`, `{`, `;` or `,`.
function name_of(code) {
  sub(/^ +/, "", code)
  sub(/^using /, "", code)
  if (sub(/^#define /, "", code)) sub(/[ (].*/, "", code)
  if (code ~ /^(public|private|protected|return|friend|namespace|class|struct|enum|template|#|})/) return ""
  if (code ~ /[A-Za-z_]\(/) { sub(/\(.*/, "", code) } else { sub(/ *[={;,].*/, "", code) }
  return match(code, /[A-Za-z_][A-Za-z0-9_]*$/) ? substr(code, RSTART) : ""
}
# Doxygen gives the comments of `int a = 1, b = 2;` to only one of the two, so this prints `int a = 1; int b = 2;` with comments for each.
function declare(code, before, before_others, behind,    i, c, depth, begin, piece, type, n) {
  if (code !~ /^  [a-z][A-Za-z0-9_:<>, *]*[ *][A-Za-z_0-9]+( = [^,]*)?, .*;$/ || code ~ /^ *(return|using|friend)|\) (const|override)/) {
    print before code (behind == "" ? "" : "  ///< " behind)  # the next lines may continue it
    return
  }
  sub(/;$/, "", code)
  begin = 1
  for (i = 1; i <= length(code) + 1; ++i) {
    c = substr(code, i, 1)
    if (c ~ /[<({]/) ++depth
    if (c ~ /[>)}]/) --depth
    if (i <= length(code) && (c != "," || depth > 0)) continue
    piece = substr(code, begin, i - begin)
    begin = i + 1
    sub(/^ +/, "", piece)
    if (++n == 1) {
      type = piece
      sub(/ = .*/, "", type)
      sub(/[*]*[A-Za-z_0-9]+$/, "", type)
    } else {
      piece = type piece
    }
    printf "%s%s;%s ", n == 1 ? before : before_others, piece, behind == "" ? "" : " /**< " behind " */"
  }
  print ""
}

BEGIN { top = 1 }
top && /^\/\/( |$)/ { print "///" text_of(substr($0, 3)); next }
top { print "/// @file"; top = 0; next }  # in place of #pragma once

/^ *\/\/\/ / {  # the comment of the declarations that follow
  if (!is_fresh) comment = was_indented = ""
  is_fresh = 1
  line = $0
  sub(/^ *\/\/\/ /, "", line)
  text = (line ~ /^ / || was_indented ? "<br>" : "") text_of(line)
  was_indented = line ~ /^ /
  comment = comment (comment == "" ? "" : " ") text
  print "/// " text
  is_behind = 0
  next
}
/^ *\/\/ / {  # more lines of a comment after code; others are not for the reference
  line = $0
  sub(/^ *\/\/ /, "", line)
  print is_behind ? "///< " text_of(line) : ""
  next
}
/^ *$/ { comment = ""; is_fresh = is_behind = is_open = 0; print; next }
{
  code = $0
  if (code ~ / = default;$/) { print ""; next }  # it says all
  is_behind = match(code, / +\/\/ /)
  behind = is_behind ? text_of(substr(code, RSTART + RLENGTH)) : ""
  if (is_behind) code = substr(code, 1, RSTART - 1)
  if (!is_open) {
    is_function = code ~ /^[^=]*[A-Za-z_]\(/ || code ~ /^ *using /
    if (!is_fresh && (is_behind || !(is_function && was_function)) && !names(comment, name_of(code))) comment = ""
    was_function = is_function
  }
  before = !is_open && comment != "" ? "/** " comment " */ " : ""
  declare(code, is_fresh ? "" : before, before, behind)
  is_fresh = 0
  open_parentheses += gsub(/\(/, "(", code) - gsub(/\)/, ")", code)
  is_open = open_parentheses > 0 || (code !~ /([;{},]|(public|private|protected):)$/ && code !~ /^#/)  # the declaration has more lines
}
