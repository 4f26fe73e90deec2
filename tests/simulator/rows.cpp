#include "simulator/rows.hpp"

#include <sstream>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"

namespace fsdp::simulator {

namespace {

/// The lines of a file without quotes, after the first one, which names the columns.
std::vector<std::vector<std::string>> cells_of(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return {};
  std::istringstream text(read_text_file(path));
  std::vector<std::vector<std::string>> lines;
  for (std::string line; std::getline(text, line);) {
    std::vector<std::string>& cells = lines.emplace_back(1);
    for (const char c : line)
      if (c == ',')
        cells.emplace_back();
      else
        cells.back() += c;
    if (cells.size() != lines.front().size())
      throw UserError(format("{}: line {} has {} columns, not {}; correct it", path.string(), lines.size(), cells.size(),
                             lines.front().size()));
  }
  lines.erase(lines.begin());
  return lines;
}

}  // namespace

std::vector<Row> read_rows(const std::filesystem::path& folder) {
  std::vector<Row> rows;
  for (const auto& cells : cells_of(folder / "rows.csv")) {
    std::size_t next = 0;
    const auto text = [&] { return cells.at(next++); };
    const auto number = [&] { return std::stod(text()); };
    const auto count = [&] { return std::stoull(text()); };
    const auto flag = [&] { return text() == "1"; };
    const auto ranks = [&] { return std::stoi(text()); };
    // The elements of a list in braces are evaluated in order.
    rows.push_back({text(),  text(), text(),  count(),  count(), count(),  count(),  count(), count(), flag(),
                    count(), flag(), text(),  number(), ranks(), ranks(),  number(), count(), count(), count(),
                    text(),  text(), ranks(), count(),  flag(),  number(), text(),   text(),  text(),  text()});
  }
  for (const auto& cells : cells_of(folder / "vtrain.csv")) {
    const auto count = [&](std::size_t i) { return std::stoull(cells.at(i)); };
    const std::size_t width = count(2), heads = count(3), tokens = count(4), micro_batch = count(6), accumulation = count(7);
    const int gpus = std::stoi(cells.at(5));
    rows.push_back({.id = cells[0],
                    .program = "vtrain",
                    .model = format("GPT {}x{}", cells[1], cells[2]),
                    .layers = count(1),
                    .width = width,
                    .heads = heads,
                    .kv_heads = heads,
                    .head_size = width / heads,
                    .ffn_width = 4 * width,
                    .gated = false,
                    .vocab = 51200,
                    .tied = true,
                    .gpu = "a100",
                    .watts = 400,
                    .gpus = gpus,
                    .per_node = std::min(gpus, 8),
                    .gbit = 200,
                    .tokens = tokens,
                    .micro_batch = micro_batch,
                    .accumulation = accumulation,
                    .strategy = "none",
                    .recompute = "block",
                    .reduce_bytes = 2,
                    .lora_rank = 0,
                    .bf16_state = false,
                    .measured = static_cast<double>(micro_batch * accumulation * tokens) / (std::stod(cells.at(8)) / 1e3),
                    .role = cells[0] == "vt-single-973" ? "fit" : "predict",
                    .exception = {},
                    .note = {},
                    .source = format("VIA-Research/vTrain f8dda84 data/ground_truth_{}.csv",
                                     cells[0].starts_with("vt-single") ? "single" : "multi")});
  }
  if (rows.empty()) throw UserError(format("{} has no rows in rows.csv or vtrain.csv; correct the folder", folder.string()));
  return rows;
}

}  // namespace fsdp::simulator
