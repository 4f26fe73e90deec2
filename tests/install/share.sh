#!/usr/bin/env bash
# share.sh PREFIX BIN: the man pages, completions and module file of an installation that was moved to PREFIX. BIN is its folder of programs there.
# Its last line says which of man, zsh and lmod are not installed, so that what needs them was left out.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../tools/support.sh
source "$(dirname "$(realpath "$0")")/../tools/support.sh"
prefix=$1 bin=$1/$2
share=$prefix/share
export PATH=$bin:$PATH MANPATH=$share/man
main_options_of() { "$bin/$1" --help all | sed -nE 's/^ {2}([^ ]+, )?(--[a-z0-9-]+).*/\2/p'; }
options_of() { # with aliases, "[also --name]"
  { main_options_of "$1" && "$bin/$1" --help all | tr -s ' \n' ' ' | sed 's/\[also /\n&/g' | sed -nE 's/^\[also (--[a-z0-9-]+).*/\1/p'; } | sort -u
}

# Every option of --help is in the man page, the page of bash and the page of zsh; and no other.
for program in "$bin"/fsdp-*; do
  name=${program##*/}
  page=$share/man/man1/$name.1
  options_of "$name" >"$work/options"
  sed -nE '/^\.SH OPTIONS/,/^\.SH EXIT/{ /^\.B/{ s/\\//g; p } }' "$page" | grep -oE -- '--[a-z0-9-]+' | sort -u >"$work/in_page"
  diff "$work/options" "$work/in_page" >"$work/output" || fail "$page and $name --help have other options"
  if command -v man >/dev/null; then
    man --warnings --local-file "$page" >/dev/null 2>"$work/output" || fail "man cannot show $page"
    [[ ! -s $work/output ]] || fail "man warns of $page"
    [[ $(man --where "$name") == "$page" ]] || fail "man finds another page of $name"
  fi
done

# shellcheck disable=SC2317
compopt() { :; } # it works only while bash completes
# complete WORDS...: the answers of bash for the last word.
complete_words() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _fsdp "$1" "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}"
}
expect() { # expect WORDS ANSWERS
  local words
  read -ra words <<<"${1//_/}"
  [[ $1 != *_ ]] || words+=("")
  complete_words "${words[@]}"
  [[ ${COMPREPLY[*]} == "$2" ]] || fail "bash completes '$1' to '${COMPREPLY[*]}' and not to '$2'"
}
# shellcheck disable=SC1091
source "$share/bash-completion/completions/fsdp-plan"
complete -p fsdp-train | grep -q _fsdp || fail "no completion for fsdp-train"
mkdir "$work/files" && touch "$work/files"/{text.txt,tokens.bin} && cd "$work/files"
expect "fsdp-train --break-mode none tex" "text.txt"
expect "fsdp-train --break" "--break-mode"
expect "fsdp-train --break-mode _" "none complete eos"
expect "fsdp-train --break-mode c" "complete"
expect "fsdp-train --break-mode =" "none complete eos" # bash makes three words of --break-mode=c
expect "fsdp-train --break-mode = e" "eos"
expect "fsdp-train --sample-break-mode n" "none" # an alias
expect "fsdp-train --lr _" ""                      # any number
expect "fsdp-train --config to" "tokens.bin"
expect "fsdp-train tex" "text.txt"
expect "fsdp-train --arch llama-3.2-1" "llama-3.2-1b"
expect "$bin/fsdp-plan --gpu h200-" "h200-nvl"
expect "fsdp-plan --batch-size-per" "" # only main names
expect "fsdp-plan --batch" "--batch-size" # an option of fsdp-train
for name in "$bin"/fsdp-*; do
  name=${name##*/}
  # shellcheck disable=SC2154
  diff <(main_options_of "$name" | sort) <(tr ' ' '\n' <<<"${_fsdp_options[$name]}" | sort) \
    >"$work/output" || fail "bash completes other options than $name --help has"
done
if command -v zsh >/dev/null; then
  # shellcheck disable=SC2016
  zsh -f -c '_arguments() { print -rl -- "$@" }; service=fsdp-plan; source "$1"' zsh "$share/zsh/site-functions/_fsdp" >"$work/output"
  for line in '--break-mode=[How documents are cut into sequences]:value:(none complete eos)' '--config=[Read options from FILE]:FILE:_files' '*:file:_files'; do
    says "$line"
  done
  [[ $(grep -oE -- '^--[a-z0-9-]+' "$work/output" | sort) == "$(tr ' ' '\n' <<<"${_fsdp_options[fsdp-plan]}" | sort)" ]] || fail "zsh has other options of fsdp-plan"
fi

# The module, in place and copied to another folder.
lmod=/usr/share/lmod/lmod/init/bash
if [[ -r $lmod && $prefix != *[[:space:]]* ]]; then # Lmod runs no Tcl module with a space in its path
  load() { bash -c '. "$1"; module use "$2"; module load fsdp && type -P fsdp-train && echo "$FSDP_JOB" && module unload fsdp && echo "after: $FSDP_JOB"' load "$lmod" "$1"; }
  PATH=${PATH#"$bin:"} load "$share/modulefiles" >"$work/output" 2>&1 || fail "the module cannot be loaded"
  says "$bin/fsdp-train"
  says "$share/fsdp/slurm/job.sh"
  grep -qx "after: " "$work/output" || fail "the module leaves FSDP_JOB behind"
  [[ -x $share/fsdp/tools/fetch-model && -r $share/fsdp/slurm/job.sh ]] || fail "files are missing in share/fsdp"
fi
for file in LICENSE README.md docs/install.md docs/examples/own-layer/CMakeLists.txt; do
  [[ -r $share/doc/fsdp/$file ]] || fail "share/doc/fsdp/$file is missing"
done
missing=()
for command in man zsh; do command -v "$command" >/dev/null || missing+=("$command"); done
[[ -r $lmod ]] || missing+=(lmod)
((${#missing[@]} == 0)) || echo "left out, as it is not installed: ${missing[*]}"
exit $((failures > 0))
