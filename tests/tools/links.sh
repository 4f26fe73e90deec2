#!/usr/bin/env bash
# links.sh REPOSITORY: every relative link in a Markdown page leads to a file of the repository, and its anchor to a heading of that page. Every
# page of docs/ that a source or script names exists, and docs/README.md lists each once.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"

# broken FOLDER: prints a line for each link that leads nowhere. Code blocks and code between backquotes have no links. Anchors are GitHub's.
broken() {
  local page target anchor pages
  cd "$1"
  mapfile -t pages < <(find . -name '*.md' -not -path './.*' -not -path './build/*' -printf '%P\n' | sort)
  awk '
    FNR == 1 { page = folder = FILENAME; sub(/[^\/]*$/, "", folder); fenced = 0 }
    /^ *```/ { fenced = !fenced }
    fenced || /^    / { next }
    sub(/^#+ +/, "") {
      slug = tolower($0)
      while (match(slug, /\]\([^)]*\)/)) slug = substr(slug, 1, RSTART - 1) substr(slug, RSTART + RLENGTH)
      gsub(/[^a-z0-9 _-]/, "", slug)
      gsub(/ /, "-", slug)
      id = page "#" slug
      if (seen[id]++) id = id "-" (seen[id] - 1)
      headings[id] = 1
    }
    {
      gsub(/`[^`]*`/, "")
      for (; match($0, /\]\([^)]*\)/); $0 = substr($0, RSTART + RLENGTH)) {
        link = substr($0, RSTART + 2, RLENGTH - 3)
        if (link ~ /^[a-z]+:/) continue
        target = anchor = link
        sub(/#.*/, "", target)
        if (!sub(/^[^#]*#/, "", anchor)) anchor = ""
        target = target == "" ? page : folder target
        while (sub(/[^\/]+\/\.\.\//, "", target)) {}
        links[++count] = page ":" FNR
        targets[count] = target
        anchors[count] = anchor
      }
    }
    END {
      for (i = 1; i <= count; ++i) print links[i], targets[i], anchors[i] == "" || (targets[i] "#" anchors[i]) in headings ? "" : anchors[i]
    }' "${pages[@]}" >"$work/links"
  while read -r page target anchor; do
    [[ -e $target ]] || echo "$page: there is no $target"
    [[ -z $anchor ]] || echo "$page: $target has no heading for #$anchor"
  done <"$work/links"
  cd - >/dev/null
}

# The check finds what is broken.
mkdir -p "$work/planted/pages"
cat >"$work/planted/README.md" <<'END'
# A `name`: two, three
## Twice
## Twice
[a](pages/b.md) [b](pages/b.md#see-there) [c](#a-name-two-three) [d](#twice-1) [e](https://example.org/none) `[f](none)`

    [g](none)
```
[h](none)
```
[i](pages/none.md) [j](pages/b.md#none) [k](#twice-2)
END
printf '# See [there](../README.md#twice)\n[l](../README.md#none) [m](c.md)\n' >"$work/planted/pages/b.md"
diff <(broken "$work/planted") - <<'END' || fail "the check of links does not find these in a planted page"
README.md:10: there is no pages/none.md
README.md:10: pages/b.md has no heading for #none
README.md:10: README.md has no heading for #twice-2
pages/b.md:2: README.md has no heading for #none
pages/b.md:2: there is no pages/c.md
END

broken "$1" >"$work/output"
[[ ! -s $work/output ]] || fail "links that lead nowhere:"
(($(wc -l <"$work/links") > 300)) || fail "only these links were found (this test looks in the wrong place): $(<"$work/links")"

cd "$1"
while IFS=: read -r file page; do
  [[ -e $page ]] || fail "$file names $page, which does not exist"
done < <(grep -roE 'docs/[a-z-]+\.md' lib apps tests tools slurm pbs lsf flux | sort -u)
diff <(cd docs && printf '%s\n' *.md | sed '/^README.md$/d' | sort) <(grep -oE '\]\([a-z-]+\.md\)' docs/README.md | tr -d ']()' | sort) >"$work/output" ||
  fail "docs/README.md does not list each page of docs/ once"
exit $((failures > 0))
