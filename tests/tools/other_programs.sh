#!/usr/bin/env bash
# Usage: other_programs.sh ROOT
# Holds docs/from-fairseq.md, from-pytorch.md, from-deepspeed.md and from-megatron.md to the options. Every option of ours that they name is in docs/options.md,
# which is made from the programs; every option in a table of those that are not here is a row of lib/train/other_programs.cpp, and each row is
# in one of the pages; every option of fsdp-train that fairseq or Hugging Face has under that name is named; and so is all that
# the lists in other_programs/ say that those programs have.
set -euo pipefail

cd "$1"
pages=(docs/from-fairseq.md docs/from-pytorch.md docs/from-deepspeed.md docs/from-megatron.md)
status=0
complain() { echo "$*" && status=1; }

known=$(grep -o -- '`--[a-z0-9-]*' docs/options.md | tr -d '`' | sort -u)
rows=$(grep -o 'Row{[a-z_]*, "[a-zA-Z0-9._, -]*"' lib/train/other_programs.cpp | sed 's/.*"\(.*\)"/--\1/' | sort)
[[ -n $known && -n $rows ]] || complain "no options were found"
twice=$(uniq -d <<<"$rows")
[[ -z $twice ]] || complain "two rows for: $twice"
here_too=$(comm -12 <(sed -n '/^## fsdp-train/,/^## fsdp-evaluate/p' docs/options.md | grep -o -- '`--[a-z0-9-]*' | tr -d '`' | sort -u) <(sort -u <<<"$rows"))
[[ -z $here_too ]] || complain "rows of options that fsdp-train has: $here_too"

for page in "${pages[@]}"; do
  # The tables of what is not here come last, and their first column names options of others.
  # shellcheck disable=SC2016
  not_here=$(sed -n '/^| option | why it is not here/,$p' "$page" | sed -n 's/^| `\(--[a-zA-Z0-9._, -]*\)` .*/\1/p')
  while read -r option; do
    [[ -z $option ]] || grep -qx -- "$option" <<<"$rows" || complain "$page: $option is no row of lib/train/other_programs.cpp"
  done <<<"$not_here"
  while read -r option; do
    grep -qx -- "$option" <<<"$known" || grep -qx -- "$option" <<<"$rows" || complain "$page: $option is no option of a program"
  done < <(sed -E 's/(torchrun|srun|--ntasks) --?[a-z-]+[= ][0-9]+//' "$page" |
    grep -o -- '--[a-z][a-z0-9.-]*' | sort -u)
done
while read -r option; do
  grep -q -- "^| \`$option\` " "${pages[@]}" || complain "$option is a row of lib/train/other_programs.cpp, and on no page"
done <<<"$rows"

# Names that others have, too.
while read -r option; do
  grep -q -- "\`$option\`" "${pages[@]}" || complain "$option has a twin of the same name, and is on no page"
done < <(sed -n '/^## fsdp-train/,/^## fsdp-evaluate/p' docs/options.md | grep -o -- '`--\(fp16\|min-loss\|threshold\|decoder-[a-z-]*embed\|adam\|lr\|warmup\|total-num\|clip-norm\|max-\|save-interval-up\|validate\|reset\|gradient\)[a-z0-9-]*' | tr -d '`' | sort -u)

# What they have.
here=$(dirname "${BASH_SOURCE[0]}")/other_programs
for program in fairseq pytorch torchtitan accelerate deepspeed megatron; do
  page=docs/from-$program.md
  [[ ! $program =~ ^(torchtitan|accelerate)$ ]] || page=docs/from-pytorch.md
  names=$(grep -v '^#' "$here/$program.txt" | tr ' ' '\n')
  [[ -n $names ]] || complain "$here/$program.txt has no names"
  while read -r name; do
    grep -qE -- "(^|[^a-zA-Z0-9_-])(--)?${name//./[.]}([^a-zA-Z0-9_-]|$)" "$page" ||
      complain "$page: $name of $program is not there"
  done <<<"$names"
done
exit $status
