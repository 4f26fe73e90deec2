# The drawing code of tools/draw, which checks the options and runs this after json.awk. Widths are in pixels; GitHub shows pages of up to 880
# pixels without shrinking.

# --- SVG -------------------------------------------------------------------------------------------------------------------------------

function escaped(s) { gsub(/&/, "\\&amp;", s); gsub(/</, "\\&lt;", s); gsub(/>/, "\\&gt;", s); return s }
function add(s) { body = body s "\n" }
function box(x, y, w, h, fill, hint, more) {
  add(sprintf("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"%s%s", x, y, w, h, fill, more == "" ? "" : " " more, \
              hint == "" ? "/>" : "><title>" escaped(hint) "</title></rect>"))
}
function line_to(x1, y1, x2, y2, more) {
  add(sprintf("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>", x1, y1, x2, y2, more == "" ? soft "\" stroke-width=\"1" : more))
}
function say(x, y, s, anchor, more) {
  add(sprintf("<text x=\"%.1f\" y=\"%.1f\"%s%s>%s</text>", x, y, anchor == "" ? "" : " text-anchor=\"" anchor "\"", more == "" ? "" : " " more, escaped(s)))
}
function small(x, y, s, anchor) { say(x, y, s, anchor, "font-size=\"11\"") }
function quiet(x, y, s, anchor) { say(x, y, s, anchor, "font-size=\"11\" fill=\"#555\"") }
function bold(x, y, s, anchor) { say(x, y, s, anchor, "font-weight=\"bold\"") }
function wide(s, size) { return 0.6 * size * length(s) }
# Draws a legend in one line, for entries "name|name|..." with colours from COLOUR.
function legend(x, y, entries,   parts, n, i, texts) {
  n = split(entries, parts, "|")
  for (i = 1; i <= n; i++) {
    texts = parts[i]
    if (texts in PATTERN) box(x, y - 10, 13, 13, PATTERN[texts], "", "stroke=\"#777\" stroke-width=\"0.5\"")
    else box(x, y - 10, 13, 13, COLOUR[texts], "", edge)
    if (figure == "timeline" && !letters) sub(/ \(.*/, "", texts)
    small(x + 18, y + 1, texts)
    x += 18 + 5.9 * length(texts) + 14
  }
}
function hatch(id, back, colour) {
  return sprintf("<pattern id=\"%s\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"%s\"/><rect width=\"2\" height=\"6\" fill=\"%s\"/></pattern>\n", id, back, colour)
}
function finish(height) {
  printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#222\">\n", W, height, W, height
  printf "<defs>\n%s%s</defs>\n", hatch("padding", "#fff", "#888"), hatch("held", "#fff", "#bbb")
  printf "<rect width=\"%d\" height=\"%d\" rx=\"6\" fill=\"#fff\"/>\n%s</svg>\n", W, height, body
}
# 1234567 -> "1,234,567"
function grouped(n,   s, out) {
  s = sprintf("%.0f", n)
  while (length(s) > 3) { out = "," substr(s, length(s) - 2) out; s = substr(s, 1, length(s) - 3) }
  return s out
}
function bytes(n) {
  if (n < 100000) return grouped(n) " B"
  if (n < 1e6) return sprintf("%.0f kB", n / 1e3)
  return n < 1e9 ? sprintf("%.1f MB", n / 1e6) : sprintf("%.1f GB", n / 1e9)
}

function setup() {
  W = 880; soft = "#bbb"; edge = "stroke=\"#555\" stroke-width=\"0.6\""
  # Light colours for dark text that colour-blind people can distinguish (Paul Tol, "Colour Schemes", 2021).
  COLOUR["parameters"] = "#77aadd"; COLOUR["gradients"] = "#ee8866"; COLOUR["optimizer state"] = "#44bb99"
  COLOUR["gathered parameters"] = "#99ddff"; COLOUR["unreduced gradients"] = "#ffaabb"; COLOUR["activations"] = "#eedd88"
  COLOUR["parameters computed with"] = "#77aadd"; COLOUR["fp32 copy"] = "#99ddff"
  COLOUR["all-gather (G)"] = "#99ddff"; COLOUR["forward (E, F, H)"] = "#dde5a0"; COLOUR["forward again (f)"] = "#eedd88"
  COLOUR["backward (B, E)"] = "#bbcc33"; COLOUR["reduce (R, A)"] = "#ee8866"; COLOUR["norm, optimizer (N, O)"] = "#44bb99"
  COLOUR["load, unload (L, U)"] = "#ffaabb"; COLOUR["within a node"] = "#dddddd"; COLOUR["between nodes"] = "#ee8866"
  PATTERN["padding"] = "url(#padding)"; PATTERN["waits"] = "url(#held)"
  split("#77aadd #eedd88 #44bb99 #ffaabb #99ddff #bbcc33 #ee8866 #dddddd", RANK, " ")
}
function rank_colour(r) { return RANK[r % 8 + 1] }
function stage_colour(kind) {
  if (kind == "all-gather") return COLOUR["all-gather (G)"]
  if (kind ~ /reduce/) return COLOUR["reduce (R, A)"]
  if (kind == "recompute" || kind == "refill") return COLOUR["forward again (f)"]
  if (kind ~ /^backward/) return COLOUR["backward (B, E)"]
  if (kind ~ /^(forward|head)/) return COLOUR["forward (E, F, H)"]
  if (kind ~ /load$/) return COLOUR["load, unload (L, U)"]
  return COLOUR["norm, optimizer (N, O)"]
}

# --- figures of plans ------------------------------------------------------------------------------------------------------------------

function need_plan(f) { if (!((f ":plan.strategy") in J)) fail("'" FILE[f] "' has no plan: fsdp-plan writes it with --json --explain") }
# Draws a strip of the model's units from x on; the parts that rank r of `shards` holds are filled.
function strip(x, y, w, h, f, shards, shard, colour, light, hint,   u, at, units, total, wu) {
  units = N[f ":plan.units"]; total = 0; at = x
  for (u = 0; u < units; u++) total += J[f ":plan.units." u ".padded"]
  if (units > 12) units = 1  # more units do not fit
  for (u = 0; u < units; u++) {
    wu = units == 1 ? w : w * J[f ":plan.units." u ".padded"] / total
    box(at, y, wu, h, light == "" ? "#fff" : light, hint, "stroke=\"#999\" stroke-width=\"0.6\"")
    box(at + wu * shard / shards, y, wu / shards, h, colour, hint, edge)
    at += wu
  }
}
function row_of(f, strategy,   s) {
  for (s = 0; s < N[f ":strategies"]; s++) if (J[f ":strategies." s ".strategy"] == strategy) return f ":strategies." s "."
  fail("no strategy " strategy)
}
# The number of shards of a state; a rank has one. (Under optim parameters are whole, except for their fp32 copy.)
function parts_of(row, state) { return J[row "sharded." state] == "true" ? J[row "shard"] : 1 }

function draw_strategies(f,   order, n, i, row, y, r, k, keys, names, parts, m, x, light, all_ranks, w, theirs) {
  need_plan(f)
  n = split("none optim grad-op full hybrid", order, " ")
  split("DDP, NO_SHARD|ZeRO-1|ZeRO-2, SHARD_GRAD_OP|ZeRO-3, FULL_SHARD|HYBRID_SHARD", theirs, "|")
  split("parameters gradients optimizer_state", keys, " ")
  split("parameters|gradients|optimizer state", names, "|")
  all_ranks = J[f ":nodes"] * J[f ":ranks_per_node"]
  if (all_ranks > 8) { quiet(14, 24, "8 of " all_ranks " ranks"); all_ranks = 8 }
  x = 174; w = (W - x - 120) / all_ranks
  for (r = 0; r < all_ranks; r++) bold(x + w * (r + 0.5) - 4, 24, "rank " r, "middle")
  bold(W - 14, 24, "bytes of a rank", "end")
  y = 38
  for (i = 1; i <= n; i++) {
    row = row_of(f, order[i]); m = row "keeping.memory."
    line_to(14, y, W - 14, y)
    bold(14, y + 24, order[i]); quiet(14, y + 42, theirs[i])
    if (J[row "shard"] > 1 && J[row "replicate"] > 1) quiet(14, y + 58, "groups of " J[row "shard"])
    for (r = 0; r < all_ranks; r++)
      for (k = 1; k <= 3; k++) {
        parts = parts_of(row, keys[k])
        light = J[row "kept_whole." keys[k]] != "true" ? "" : k == 1 ? "#ddf3ff" : "#ffe0e6"
        strip(x + w * r, y + 10 + 14 * (k - 1), w - 14, 10, f, parts, r % parts, COLOUR[names[k]], light, order[i] ", rank " r ": " names[k])
      }
    for (k = 1; k <= 3; k++) small(W - 14, y + 19 + 14 * (k - 1), grouped(J[m keys[k]]), "end")
    small(W - 14, y + 64, "+ slots " grouped(J[m "gathered_parameters"] + J[m "unreduced_gradients"]), "end")
    small(W - 14, y + 80, "= " grouped(J[m "parameters"] + J[m "gradients"] + J[m "optimizer_state"] + J[m "gathered_parameters"] + J[m "unreduced_gradients"]), "end")
    y += 90
  }
  line_to(14, y, W - 14, y)
  legend(14, y + 22, "parameters|gradients|optimizer state")
  box(330, y + 12, 13, 13, "#ddf3ff", "", edge); small(348, y + 23, "whole from forward to backward, in slots")
  box(590, y + 12, 13, 13, "#ffe0e6", "", edge); small(608, y + 23, "whole until they are reduced, in slots")
  finish(y + 36)
}

# A tensor's name without the prefix of its block.
function short_of(name) { sub(/^.*\.(h|layers)\.[0-9]+\./, "", name); return name }

function draw_units(f,   units, u, y, x, w, scale, most, shards, r, p, tensors, t, a, b, lx, tx, name, shape, d, n, i, end, width, id, most_slices, labels, label_x, label_name, label_shape, sum_elements, sum_padded, sum_rank, same, longest) {
  need_plan(f)
  units = N[f ":plan.units"]; id = f ":plan.units." unit "."
  if (unit >= units) fail("there is no unit " unit)
  for (u = 0; u < units; u++) if (J[f ":plan.units." u ".padded"] > most) most = J[f ":plan.units." u ".padded"]
  x = 130; scale = 430 / most; y = 20
  bold(14, y, "unit"); bold(x, y, "cut into shards, one for each rank"); bold(670, y, "elements", "end"); bold(769, y, "with padding", "end"); bold(W - 14, y, "of a rank", "end")
  y += 12
  for (u = 0; u < units; u++) {
    p = f ":plan.units." u "."; shards = J[p "shards"]; w = J[p "padded"] * scale
    sum_elements += J[p "elements"]; sum_padded += J[p "padded"]; sum_rank += J[p "of_a_rank"]
    # If there are many equal units, only the first ones are drawn.
    same = u > 0 && J[p "elements"] == J[f ":plan.units." u - 1 ".elements"] ? same + 1 : 0
    if (units > 8 && same > 1 && u != unit) {
      if (same == 2) { say(14, y + 10, "..."); y += 20 }
      continue
    }
    say(14, y + 17, J[p "name"])
    for (r = 0; r < shards; r++) {
      box(x + w * r / shards, y + 2, w / shards, 20, rank_colour(r), J[p "name"] ", rank " r, edge)
      if (w / shards > 14) small(x + w * (r + 0.5) / shards, y + 16, (w / shards > 45 ? "rank " : "") r, "middle")
    }
    say(670, y + 17, grouped(J[p "elements"]), "end"); say(769, y + 17, grouped(J[p "padded"]), "end"); say(W - 14, y + 17, grouped(J[p "of_a_rank"]), "end")
    y += 30
  }
  line_to(600, y, W - 14, y)
  say(670, y + 17, grouped(sum_elements), "end"); say(769, y + 17, grouped(sum_padded), "end"); say(W - 14, y + 17, grouped(sum_rank), "end")
  y += 16
  # Draws the chosen unit again, larger.
  y += 18
  bold(14, y + 4, "the flat buffer of " J[id "name"] ", tensor by tensor")
  tensors = N[id "tensors"]
  for (t = 0; t < tensors; t++) if (length(short_of(J[id "tensors." t ".name"])) > longest) longest = length(short_of(J[id "tensors." t ".name"]))
  y += 30 + 5.7 * longest; shards = J[id "shards"]; x = 72; w = W - x - 14; scale = w / J[id "padded"]; end = 0; lx = 0
  for (t = 0; t < tensors; t++) {
    p = id "tensors." t "."; b = J[p "offset"]; n = J[p "elements"]
    if (b > end) box(x + end * scale, y, (b - end) * scale, 34, PATTERN["padding"], "padding: " b - end " elements")
    name = short_of(J[p "name"])
    shape = ""
    for (d = 0; d < N[p "shape"]; d++) shape = shape (d ? " x " : "") J[p "shape." d]
    width = n * scale
    box(x + b * scale, y, width, 34, "#f2f2f2", J[p "name"] ": " n " elements", edge)
    if (width > wide(name, 11) * 0.92) {
      labels++; label_x[labels] = x + b * scale + width / 2; label_name[labels] = name; label_shape[labels] = shape
    } else {
      tx = x + b * scale + width / 2; lx = tx < lx + 15 ? lx + 15 : tx
      line_to(tx, y, lx, y - 12, "#999")
      say(lx + 3, y - 14, name, "end", sprintf("font-size=\"11\" transform=\"rotate(60 %.1f %.1f)\"", lx + 3, y - 14))
    }
    end = b + n
  }
  if (end < J[id "padded"]) box(x + end * scale, y, (J[id "padded"] - end) * scale, 34, PATTERN["padding"], "padding: " J[id "padded"] - end " elements")
  for (r = 0; r < shards; r++) {
    a = r * J[id "of_a_rank"]; b = a + J[id "of_a_rank"]
    box(x + a * scale, y + 42, (b - a) * scale, 22, rank_colour(r), "", edge)
    width = (b - a) * scale
    if (width > 14) small(x + (a + b) / 2 * scale, y + 57, width > wide("rank 0: elements " a " to " b, 11) ? "rank " r ": elements " a " to " b - 1 : r, "middle")
    if (r) line_to(x + a * scale, y - 8, x + a * scale, y + 42, "#222\" stroke-width=\"1.4\" stroke-dasharray=\"3 2")
    n = width > 150 ? N[id "shard_slices." r] : 0  # otherwise the names do not fit
    for (i = 0; i < n; i++) {
      p = id "shard_slices." r "." i "."
      quiet(x + (a + b) / 2 * scale, y + 80 + 14 * i, short_of(J[p "tensor"]) " [" J[p "begin"] ", " J[p "end"] ")", "middle")
    }
    if (n > most_slices) most_slices = n
  }
  for (t = 1; t <= labels; t++) {  # labels are drawn over the cuts, with a halo
    say(label_x[t], y + 15, label_name[t], "middle", "font-size=\"11\" stroke=\"#f2f2f2\" stroke-width=\"4\" paint-order=\"stroke\"")
    say(label_x[t], y + 29, label_shape[t], "middle", "font-size=\"11\" fill=\"#555\" stroke=\"#f2f2f2\" stroke-width=\"4\" paint-order=\"stroke\"")
  }
  y += 80 + 14 * most_slices + 8
  legend(x, y, "padding"); quiet(x + 100, y + 1, "so that every tensor and shard starts on a cache line (16 elements)")
  finish(y + 16)
}

function draw_step(f,   id, shards, x, w, y, r, q, part, size, rows, tints, i, j, size_x, mine, fill, label, gathered, reduced) {
  need_plan(f)
  id = f ":plan.units." unit "."; shards = J[id "shards"]; part = J[id "of_a_rank"]; size = J[id "parameter_bytes"]
  for (i = 0; i < N[f ":plan.operations"]; i++) if (J[f ":plan.operations." i ".unit"] == unit) {
    if (J[f ":plan.operations." i ".kind"] == "all-gather") gathered = J[f ":plan.operations." i ".moved_bytes"]
    if (J[f ":plan.operations." i ".kind"] == "reduce-scatter") reduced = J[f ":plan.operations." i ".moved_bytes"]
  }
  if (!gathered || !reduced) fail("unit " unit " is not gathered and reduced under this strategy")
  if (shards > 16) fail("there is room for 16 ranks, and this plan has " shards)
  split("#fbd5c8 #f6b49e #ee8866 #cf6644", tints, " ")
  x = 236; w = (W - x - 14) / shards
  for (r = 0; r < shards; r++) bold(x + w * (r + 0.5) - 6, 24, "rank " r, "middle")
  y = 36
  split("at rest|all-gather|forward and backward|reduce-scatter|optimizer", rows, "|")
  for (i = 1; i <= 5; i++) {
    line_to(14, y, W - 14, y)
    bold(14, y + 22, rows[i])
    if (i == 1) { quiet(14, y + 38, "a rank has its shard of " J[id "name"] ":"); quiet(14, y + 52, grouped(part) " parameters, " bytes(size)) }
    if (i == 2) { quiet(14, y + 38, "a rank sends its shard to each other:"); quiet(14, y + 52, shards - 1 " x " bytes(gathered) "; all are the same then") }
    if (i == 3) { quiet(14, y + 38, "each with tokens of its own: gradients"); quiet(14, y + 52, "differ; a rank has all " grouped(J[id "padded"])) }
    if (i == 4) { quiet(14, y + 38, "each shard is added up where it stays:"); quiet(14, y + 52, "a rank sends " shards - 1 " x " bytes(reduced)) }
    if (i == 5) { quiet(14, y + 38, "a rank updates its shard alone, with"); quiet(14, y + 52, "the " bytes(J[id "optimizer_state_bytes"]) " of its moments") }
    for (r = 0; r < shards; r++)
      for (q = 0; q < shards; q++) {
        size_x = x + w * r + (w - 16) * q / shards
        mine = q == r; fill = "#fff"; label = ""
        if (i == 1 && mine) { fill = COLOUR["parameters"]; label = "w" q }
        if (i == 2) { fill = mine ? COLOUR["parameters"] : COLOUR["gathered parameters"]; label = "w" q }
        if (i == 3) { fill = tints[r % 4 + 1]; label = "g" q }
        box(size_x, y + 14, (w - 16) / shards, 36, fill, "", "stroke=\"#777\" stroke-width=\"0.6\"")
        if (i == 4 && mine)
          for (j = 0; j < shards; j++) box(size_x, y + 14 + 36 * j / shards, (w - 16) / shards, 36 / shards, tints[j % 4 + 1], "", "stroke=\"#777\" stroke-width=\"0.3\"")
        if (i == 4 && mine) label = "sum"
        if (i == 5 && mine) {
          box(size_x, y + 14, (w - 16) / shards, 18, COLOUR["parameters"], "", edge); box(size_x, y + 32, (w - 16) / shards, 18, COLOUR["optimizer state"], "", edge)
          if ((w - 16) / shards > 24) small(size_x + (w - 16) / shards / 2, y + 27, "w" q "'", "middle"); if ((w - 16) / shards > 24) small(size_x + (w - 16) / shards / 2, y + 45, "m, v", "middle")
        }
        if ((w - 16) / shards > 8 * length(label)) small(size_x + (w - 16) / shards / 2, y + 36, label, "middle")
      }
    y += 66
  }
  line_to(14, y, W - 14, y)
  legend(14, y + 20, "parameters|gathered parameters|optimizer state")
  for (j = 1; j <= 4; j++) box(400 + 14 * j, y + 10, 13, 13, tints[j], "", edge)
  small(476, y + 21, "gradients, of the tokens of rank 0, 1, 2, 3" (shards > 4 ? ", ..." : ""))
  finish(y + 34)
}

function draw_nodes(   f, y, x, w, r, row, shards, nodes, per, node, t, most, v, k) {
  for (f = 1; f <= files; f++) {
    need_plan(f); t = row_of(f, J[f ":plan.strategy"]) "keeping.traffic."
    v = J[t "within_node"] + J[t "between_nodes"]; if (v > most) most = v
  }
  nodes = J["1:nodes"]; per = J["1:ranks_per_node"]; w = 464 / (nodes * per); y = 22
  if (nodes * per > 8) fail("there is room for 8 ranks, and this plan has " nodes * per)
  for (node = 0; node < nodes; node++) bold(130 + (per * w + 16) * node + per * w / 2 - 6, y, "node " node, "middle")
  x = 130 + (per * w + 16) * nodes + 16
  bold(x, y, "a rank sends per update"); y += 12
  for (f = 1; f <= files; f++) {
    row = row_of(f, J[f ":plan.strategy"]); shards = parts_of(row, "parameters"); t = row "keeping.traffic."
    line_to(14, y, W - 14, y)
    bold(14, y + 26, TITLE[f] != "" ? TITLE[f] : J[row "strategy"]); quiet(14, y + 42, "mesh " J[row "shard"] " x " J[row "replicate"])
    for (r = 0; r < nodes * per; r++) {
      node = int(r / per)
      if (r % per == 0) box(130 + (per * w + 16) * node - 6, y + 8, per * w, 46, "#f7f7f7", "", "rx=\"4\" stroke=\"#bbb\"")
      small(130 + (per * w + 16) * node + w * (r % per) + (w - 14) / 2, y + 22, "rank " r, "middle")
      strip(130 + (per * w + 16) * node + w * (r % per), y + 30, w - 14, 14, f, shards, r % shards, COLOUR["parameters"], "", "parameters of rank " r)
    }
    v = J[t "within_node"] * (W - x - 14) / most; k = J[t "between_nodes"] * (W - x - 14) / most
    box(x, y + 12, v, 16, COLOUR["within a node"], "within a node", edge); box(x + v, y + 12, k, 16, COLOUR["between nodes"], "between nodes", edge)
    small(x, y + 44, bytes(J[t "within_node"]) " within, " bytes(J[t "between_nodes"]) " between")
    small(x, y + 59, "a node sends " bytes(J[t "out_of_node"]) " to others")
    y += 70
  }
  line_to(14, y, W - 14, y)
  legend(130, y + 20, "parameters|within a node|between nodes")
  finish(y + 34)
}

function draw_bytes(   f, u, y, x, scale, k, keys, names, v, at, total, most, elements, whole, units) {
  split("parameter_bytes fp32_copy_bytes gradient_bytes optimizer_state_bytes", keys, " ")
  split("parameters computed with|fp32 copy|gradients|optimizer state", names, "|")
  x = 330; y = 16
  for (f = 1; f <= files; f++) {
    need_plan(f); total = 0; elements = 0; whole = 0; units = N[f ":plan.units"]
    for (u = 0; u < units; u++) {
      elements += J[f ":plan.units." u ".of_a_rank"]; whole += J[f ":plan.units." u ".padded"]
      for (k = 1; k <= 4; k++) BYTES[f, k] += J[f ":plan.units." u "." keys[k]]
    }
    for (k = 1; k <= 4; k++) total += BYTES[f, k] /= k == 1 && parts_of(row_of(f, J[f ":plan.strategy"]), "parameters") == 1 ? whole : elements
    TOTAL[f] = total; if (total > most) most = total
  }
  scale = (W - x - 60) / most
  for (f = 1; f <= files; f++) {
    say(14, y + 21, TITLE[f]); at = x
    for (k = 1; k <= 4; k++) {
      v = BYTES[f, k]; if (v == 0) continue
      box(at, y + 4, v * scale, 26, COLOUR[names[k]], names[k], edge)
      small(at + v * scale / 2, y + 21, sprintf("%.3g", v), "middle"); at += v * scale
    }
    bold(at + 10, y + 21, sprintf("%.3g", TOTAL[f])); y += 36
  }
  legend(14, y + 20, "parameters computed with|fp32 copy|gradients|optimizer state"); quiet(W - 14, y + 21, "bytes per parameter", "end")
  finish(y + 36)
}

function draw_memory(   f, i, n, b, x, y, w, h, most, id, roles, k, at, py, v, base, points, last, step) {
  n = split("parameters|gradients|optimizer state|gathered parameters|unreduced gradients", roles, "|")
  for (f = 1; f <= files; f++) {
    need_plan(f)
    for (b = 0; b < N[f ":plan.buffers"]; b++) { id = f ":plan.buffers." b "."; if (J[id "whole_run"] == "true" && J[id "on_host"] != "true") HELD[f, J[id "role"]] += J[id "bytes"] }
    TOP[f] = 0
    for (i = 0; i < N[f ":plan.operations"]; i++) if (J[f ":plan.operations." i ".activations"] + 0 > TOP[f]) TOP[f] = J[f ":plan.operations." i ".activations"] + 0
    for (k = 1; k <= n; k++) TOP[f] += HELD[f, roles[k]]
    if (TOP[f] > most) most = TOP[f]
  }
  x = 62; y = 60; h = 250; w = (W - x - 10) / files - 14
  step = 1
  while (most / step > 10) step *= step ~ /^2/ ? 2.5 : 2
  most = step * int(most / step + 0.999)
  for (v = 0; v <= most; v += step) {
    line_to(x - 4, y + h - h * v / most, W - 10, y + h - h * v / most, "#e4e4e4"); small(x - 8, y + h - h * v / most + 4, sprintf("%.3g", v / (most < 1e6 ? 1e3 : most < 1e9 ? 1e6 : 1e9)), "end")
  }
  small(x - 8, y - 12, most < 1e6 ? "kB" : most < 1e9 ? "MB" : "GB", "end")
  for (f = 1; f <= files; f++) {
    at = x + (w + 14) * (f - 1); base = 0; n = N[f ":plan.operations"]
    bold(at + w / 2, 18, TITLE[f], "middle"); small(at + w / 2, 36, "at most " (TOP[f] < 1e6 ? grouped(TOP[f]) " B" : bytes(TOP[f])), "middle")
    for (k = 1; k <= 5; k++) {
      v = HELD[f, roles[k]]; if (v == 0) continue
      box(at, y + h - h * (base + v) / most, w, h * v / most, COLOUR[roles[k]], roles[k] ": " grouped(v) " B"); base += v
    }
    points = sprintf("%.1f,%.1f", at, y + h - h * base / most)
    for (i = 0; i < n; i++) {
      py = y + h - h * (base + J[f ":plan.operations." i ".activations"]) / most
      points = points sprintf(" %.1f,%.1f %.1f,%.1f", at + w * i / n, py, at + w * (i + 1) / n, py)
    }
    points = points sprintf(" %.1f,%.1f", at + w, y + h - h * base / most)
    add("<polygon points=\"" points "\" fill=\"" COLOUR["activations"] "\"><title>activations</title></polygon>")
    add(sprintf("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" stroke=\"#555\" stroke-width=\"0.6\"/>", at, y, w, h))
    # The sections: forward up to the head, backward up to the norm, optimizer.
    last = 0
    for (i = 0; i < n; i++) if (J[f ":plan.operations." i ".kind"] == "head and loss" || J[f ":plan.operations." i ".kind"] == "gradient norm") {
      line_to(at + w * (i + 1) / n, y, at + w * (i + 1) / n, y + h + 4, "#777\" stroke-width=\"0.8\" stroke-dasharray=\"2 2")
      small(at + w * (last + i + 1) / 2 / n, y + h + 16, J[f ":plan.operations." i ".kind"] == "gradient norm" ? "backward" : "forward", "middle"); last = i + 1
    }
    if (w * (n - last) / n > 14) small(at + w * (last + n) / 2 / n, y + h + 16, "opt.", "middle")
  }
  legend(14, y + h + 42, "parameters|gradients|optimizer state|gathered parameters|unreduced gradients|activations")
  finish(y + h + 56)
}

# --- timelines -------------------------------------------------------------------------------------------------------------------------

# ROW[panel, row] has the title of a row of boxes, and BOX the boxes. They are filled from a plan or from a trace.
function new_box(panel, row, begin, end, label, hint, fill) {
  boxes++; B_panel[boxes] = panel; B_row[boxes] = row; B_begin[boxes] = begin; B_end[boxes] = end; B_label[boxes] = label; B_hint[boxes] = hint; B_fill[boxes] = fill
  if (end > last_end) last_end = end
}
function schedule(f, mode,   n, i, id, begin, time, stream, queue, w, ended, ends, used, waits, k, writes, buffer, unit_name, occupied, owner, label) {
  n = N[f ":plan.operations"]; waits = 0
  for (i = 0; i < n; i++) {
    id = f ":plan.operations." i "."; stream = J[id "stream"]; time = J[id "drawn_time"] + 0
    queue = mode == "one" ? "one" : mode == "thread" && stream != "compute" ? "thread" : stream
    begin = ended[queue] + 0
    if (queue == "thread" && ended["compute"] > begin) begin = ended["compute"]  # the computing thread enqueues this work
    for (w = 0; w < N[id "waits"]; w++) if (ends[J[id "waits." w]] > begin) begin = ends[J[id "waits." w]]
    if (stream == "compute" && time > 0 && begin > used + 1e-9) {
      new_box(f, "compute", used, begin, "", "waits", PATTERN["waits"]); waits += begin - used
    }
    ended[queue] = ends[i] = begin + time
    if (time > 0) {
      label = J[id "label"]; sub(/root/, "", label); sub(/,.*/, "", label)
      new_box(f, stream, begin, begin + time, label, J[id "title"], stage_colour(J[id "kind"])); STREAMS[f, stream] = 1
      if (stream == "compute") used = begin + time
    }
    # A slot is used from a gather to its release, or from the first write of a gradient to its reduction.
    if (J[id "kind"] == "all-gather") {
      buffer = J[f ":plan.buffers." J[id "writes.0"] ".name"]; occupied[buffer] = begin; owner[buffer] = J[f ":plan.units." J[id "unit"] ".name"]
    } else if (J[id "kind"] == "release") {
      buffer = J[f ":plan.buffers." J[id "reads.0"] ".name"]
      if (slots) { new_box(f, "slot " buffer, occupied[buffer], begin, owner[buffer], "", "#ddf3ff"); STREAMS[f, "slot " buffer] = 1; SLOT[buffer] = 1 }
    }
  }
  WAITED[f] = waits; LENGTH[f] = 0
  for (queue in ended) if (ended[queue] > LENGTH[f]) LENGTH[f] = ended[queue]
}
function draw_rows(measured,   p, y, x, scale, order, n, i, k, h, fit) {
  n = split("load gather compute reduce unload", order, " ")
  if (slots) { order[++n] = "slot P root"; for (i = 0; i < 10; i++) order[++n] = "slot P" i }
  x = 92; scale = (W - x - 14) / last_end; h = 24; y = 8
  for (p = 1; p <= panels; p++) {
    bold(14, y + 16, TITLE[p]); quiet(W - 14, y + 16, NOTE[p], "end"); y += 24
    for (i = 1; i <= n; i++) if ((p, order[i]) in STREAMS) {
      quiet(x - 8, y + 16, order[i], "end"); line_to(x, y + h - 1, W - 14, y + h - 1, "#e4e4e4")
      for (k = 1; k <= boxes; k++) if (B_panel[k] == p && B_row[k] == order[i]) {
        fit = (B_end[k] - B_begin[k]) * scale
        if (fit < 0.2) continue
        box(x + B_begin[k] * scale, y + 2, fit, h - 5, B_fill[k], B_hint[k] (measured ? sprintf(", %.3f ms", B_end[k] - B_begin[k]) : ""), "stroke=\"#555\" stroke-width=\"" (fit < 3 ? "0.2" : "0.6") "\"")
        if (fit > 6.6 * length(B_label[k])) small(x + (B_begin[k] + B_end[k]) / 2 * scale, y + 15, B_label[k], "middle")
      }
      y += h
    }
    y += 10
  }
  return y
}
function draw_timeline(   f, y, i, any, loads) {
  for (f = 1; f <= files; f++) {
    need_plan(f); schedule(f, MODE[f] != "" ? MODE[f] : queues)
    NOTE[f] = sprintf("length %.1f, compute waits %.1f (1 is the forward pass of a block)", LENGTH[f], WAITED[f])
    if ((f, "load") in STREAMS) loads = 1
    for (i = 1; i <= boxes; i++) if (B_label[i] ~ /^f/) any = 1
  }
  panels = files; letters = 1
  y = draw_rows()
  legend(14, y + 10, "all-gather (G)|forward (E, F, H)" (any ? "|forward again (f)" : "") "|backward (B, E)|reduce (R, A)|norm, optimizer (N, O)" (loads ? "|load, unload (L, U)" : "") "|waits")
  finish(y + 26)
}
function draw_trace(   i, id, n, first, r, label, y, again) {
  n = N["1:traceEvents"]; first = -1
  for (i = 0; i < n; i++) {
    id = "1:traceEvents." i "."
    if (J[id "ph"] != "X" || J[id "pid"] >= ranks + 0) continue
    if (update == 0) update = J[id "args.update"]
    if (J[id "args.update"] == update && (first < 0 || J[id "ts"] + 0 < first)) first = J[id "ts"] + 0
  }
  if (first < 0) fail("the trace has no such update")
  for (i = 0; i < n; i++) {
    id = "1:traceEvents." i "."
    if (J[id "ph"] != "X" || J[id "pid"] >= ranks + 0 || J[id "args.update"] != update) continue
    r = J[id "pid"] + 1; if (r > panels) panels = r
    if (J[id "name"] ~ /^re(compute|fill)/) again = "|forward again (f)"
    label = J[id "name"]; sub(/^(all-gather|forward|backward|recompute|refill|reduce-scatter|all-reduce|optimizer) /, "", label); sub(/block /, "", label); sub(/, add$/, "", label)
    new_box(r, J[id "cat"], (J[id "ts"] - first) / 1000, (J[id "ts"] + J[id "dur"] - first) / 1000, label, J[id "name"], stage_colour(kind_of(J[id "name"])))
    STREAMS[r, J[id "cat"]] = 1
  }
  for (r = 1; r <= panels; r++) TITLE[r] = "rank " r - 1
  y = draw_rows(1)
  legend(14, y + 10, "all-gather (G)|forward (E, F, H)" again "|backward (B, E)|reduce (R, A)|norm, optimizer (N, O)")
  say(14, y + 34, sprintf("update %.0f, %.1f ms from left to right, measured", update, last_end))
  finish(y + 46)
}
# The kind in an operation's title.
function kind_of(title) {
  if (title ~ /^all-gather/) return "all-gather"
  if (title ~ /^(forward|recompute|refill|head)/) { sub(/ .*/, "", title); return title }
  return title
}

BEGIN {
  setup(); files = 0
  for (i = 1; i < ARGC; i++) {
    files++; at = match(ARGV[i], /=[^=]*$/)
    FILE[files] = at ? substr(ARGV[i], at + 1) : ARGV[i]; TITLE[files] = at ? substr(ARGV[i], 1, at - 1) : ""
    if (match(TITLE[files], /@(streams|thread|one)$/)) { MODE[files] = substr(TITLE[files], RSTART + 1); TITLE[files] = substr(TITLE[files], 1, RSTART - 1) }
    read_json(FILE[files], files ":")
  }
  if (figure == "strategies") draw_strategies(1)
  else if (figure == "units") draw_units(1)
  else if (figure == "step") draw_step(1)
  else if (figure == "nodes") draw_nodes()
  else if (figure == "bytes") draw_bytes()
  else if (figure == "memory") draw_memory()
  else if (N["1:traceEvents"] > 0) draw_trace()
  else draw_timeline()
}
