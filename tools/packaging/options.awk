# Writes the man pages of all programs and the completions for bash and zsh from docs/options.md, which tools/update-options-doc makes from the
# programs' tables of options. So no program needs to run, and a cross build has them, too.
# Usage: awk -v version=VERSION -v date=DATE -v template=completion.bash -v out=DIR -f options.awk docs/options.md
# DIR has the folders man, bash and zsh.

function trimmed(text) { sub(/^[ \t]+/, "", text); sub(/[ \t]+$/, "", text); return text }
# Text without Markdown's escapes and backquotes of code.
function plain(text) { gsub(/`/, "", text); gsub(/\\\|/, "|", text); gsub(/\\</, "<", text); return trimmed(text) }
# The first sentence, without its point.
function sentence(text) { sub(/[.:;] .*/, "", text); sub(/[.:]$/, "", text); return text }
# A word that follows a cell's "--name".
function is_file(argument) { return argument ~ /^(FILE|FILES|DIR|PATH|DATA|MODEL|OUT|CHECKPOINT|OTHER|STEP|NAME)$/ }

/^## fsdp-/ {
  program = $2
  programs[++count] = program
  listed = 1
  next
}
/^### / { listed = 0 }
!program || !listed { next }
/^    fsdp-/ && !usage[program] { usage[program] = trimmed(substr($0, length(program) + 5)); next }
/^    / { examples[program] = examples[program] trimmed($0) "\n"; next }
/^It has the options of \[/ { shares[program] = $6; gsub(/^\[|\].*$/, "", shares[program]); next }
/^\*\*/ { group = $0; gsub(/\*/, "", group); next }
/^\| .*`--/ {
  line = $0
  gsub(/\\\|/, "\001", line)  # bars in a cell
  split(line, cells, "|")
  for (i in cells) gsub(/\001/, "|", cells[i])
  row = ++rows[program]
  groups[program, row] = group
  value[program, row] = plain(cells[3])
  help[program, row] = plain(cells[4])
  names = cells[2]
  gsub(/<br>/, ", ", names)
  names = plain(names)
  words[program, row] = names
  name = names
  sub(/^.* or --/, "--", name)
  sub(/,? --.*/, "", name)
  argument = name
  if (sub(/^[^ ]+ /, "", argument) == 0 || argument ~ /^\[/) argument = ""  # [TOPIC] may be left out
  sub(/ .*/, "", name)
  option[program, row] = name
  arguments[program, row] = argument
  next
}
/^[A-Z]/ && !summary[program] { summary[program] = plain($0) }

# ---- man pages
function roff(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); gsub(/\|/, "|\\:", text); return text }  # lines may break at bars
# Prints text in lines of less than 80 characters, none of which begins like a request of roff.
function paragraph(text, file,    many, parts, i, line) {
  many = split(roff(text), parts, " ")
  line = ""
  for (i = 1; i <= many; i++) {
    if (line != "" && length(line) + length(parts[i]) > 76) { print line >file; line = "" }
    if (line == "" && parts[i] ~ /^[.']/) parts[i] = "\\&" parts[i]
    line = line (line == "" ? "" : " ") parts[i]
  }
  if (line != "") print line >file
}
# Programs that share the options of another have their own group Help, and no rehearsal.
function is_left_out(of, row, as) { return of != as && groups[of, row] ~ /^(Help|Rehearsal)$/ }
function options_page(of, file,    row, title, text) {
  if (of in shares) options_page(shares[of], file)
  for (row = 1; row <= rows[of]; row++) {
    if (is_left_out(of, row, shown)) continue
    if (groups[of, row] != title) { title = groups[of, row]; print ".SS " roff(title) >file }
    print ".TP\n.B " roff(words[of, row]) >file
    text = help[of, row]
    if (value[of, row] != "") text = text (value[of, row] == "must be given" ? " [" : " [default: ") value[of, row] "]"
    paragraph(text, file)
  }
}
function page(name,    file, i) {
  shown = name
  file = out "/man/" name ".1"
  print ".\\\" Made by tools/packaging/options.awk from docs/options.md" >file
  print ".TH " toupper(name) " 1 " date " \"fsdp " version "\" \"Programs of fsdp\"" >file
  print ".SH NAME" >file
  print roff(name) " \\- " roff(sentence(summary[name])) >file
  print ".SH SYNOPSIS\n.B " roff(name) >file
  paragraph(usage[name], file)
  print ".SH DESCRIPTION" >file
  paragraph(summary[name], file)
  print ".PP" >file
  paragraph("Values follow options as --key value or --key=value. In the names of options, hyphen and underscore are the same.", file)
  print ".SH OPTIONS" >file
  options_page(name, file)
  print ".SH EXIT STATUS" >file
  print ".TP\n.B 0\nDone.\n.TP\n.B 1\nThe command is right, but something failed.\n.TP\n.B 2\nThe command is wrong." >file
  if (name == "fsdp-train") print ".TP\n.B 75\nStopped on request; everything is saved." >file
  printf ".SH EXAMPLES\n.nf\n%s.fi\n", roff(examples[name]) >file
  print ".SH SEE ALSO" >file
  for (i = 1; i <= count; i++)
    if (programs[i] != name) print ".BR " roff(programs[i]) " (1)" (i < count - (programs[count] == name) ? "," : "") >file
  print ".PP" >file
  paragraph("The files docs/NAME.md that messages name are in share/doc/fsdp of the installation.", file)
  close(file)
}

# ---- completions
function choices(argument) { gsub(/\|/, " ", argument); gsub(/ ?PATH/, "", argument); return argument }
function quoted(text) { gsub(/'/, "'\\''", text); return "'" text "'" }
function all_options(of, as,    row, all) {
  all = (of in shares) ? all_options(shares[of], as) : ""
  for (row = 1; row <= rows[of]; row++)
    if (!is_left_out(of, row, as) && index(" " all " ", " " option[of, row] " ") == 0) all = all (all == "" ? "" : " ") option[of, row]
  return all
}
function bash_values(of, file, as,    row, what, i, many, parts) {
  if (of in shares) bash_values(shares[of], file, as)
  for (row = 1; row <= rows[of]; row++) {
    what = arguments[of, row]
    if (what == "" || is_left_out(of, row, as)) continue
    what = index(what, "|") ? choices(what) : option[of, row] == "--arch" ? "<arch>" : is_file(what) ? "<file>" : "<any>"
    many = split(words[of, row], parts, /[ ,]+/)  # with its aliases
    for (i = 1; i <= many; i++) if (parts[i] ~ /^--/) print "  [" as " " parts[i] "]=" quoted(what) >file
  }
}
function bash_file(    file, i) {
  file = out "/bash/fsdp"
  print "# bash completion for the programs of fsdp, made by tools/packaging/options.awk from docs/options.md" >file
  print "declare -A _fsdp_options=(" >file
  for (i = 1; i <= count; i++) print "  [" programs[i] "]='" all_options(programs[i], programs[i]) "'" >file
  print ")\ndeclare -A _fsdp_values=(" >file
  for (i = 1; i <= count; i++) bash_values(programs[i], file, programs[i])
  print ")" >file
  while ((getline line < template) > 0) print line >file
  printf "complete -F _fsdp" >file
  for (i = 1; i <= count; i++) printf " %s", programs[i] >file
  print "" >file
  close(file)
}
BEGIN { archs = "fsdp-train --list-archs 2>/dev/null | cut -d\" \" -f1" }
function zsh_rows(of, file, as,    row, what, text) {
  if (of in shares) zsh_rows(shares[of], file, as)
  for (row = 1; row <= rows[of]; row++) {
    if (is_left_out(of, row, as)) continue
    what = arguments[of, row]
    text = sentence(help[of, row])
    gsub(/[][\\]/, "\\\\&", text)
    text = "[" text "]"
    if (what != "") text = "=" text ":" (index(what, "|") ? "value:(" choices(what) ")" : what ":" (option[of, row] == "--arch" ? "{compadd -- $(" archs ")}" : is_file(what) ? "_files" : ""))
    print "    " quoted(option[of, row] text) >file
  }
}
function zsh_file(    file, i) {
  file = out "/zsh/_fsdp"
  printf "#compdef" >file
  for (i = 1; i <= count; i++) printf " %s", programs[i] >file
  print "\n# Made by tools/packaging/options.awk from docs/options.md.\nlocal -a specs\ncase $service in" >file
  for (i = 1; i <= count; i++) {
    print "  " programs[i] ") specs=(" >file
    zsh_rows(programs[i], file, programs[i])
    print "  ) ;;" >file
  }
  print "esac\n_arguments $specs '*:file:_files'" >file
  close(file)
}
END {
  if (count < 9) { print "options.awk: docs/options.md has " count + 0 " programs; make it by tools/update-options-doc" >"/dev/stderr"; exit 1 }
  for (i = 1; i <= count; i++) page(programs[i])
  bash_file()
  zsh_file()
}
