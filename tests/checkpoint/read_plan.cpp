// Which ranges of which files a rank reads, for a model of 175 B parameters and a thousand ranks. No file is written or read.
#include <algorithm>
#include <cstdio>
#include <set>

#include <boost/test/unit_test.hpp>

#include "base/timer.hpp"
#include "checkpoint/read_plan.hpp"
#include "checkpoint/stored.hpp"
#include "plan/placement.hpp"

using namespace fsdp;

namespace {

/// Brown et al. 2020, "Language Models are Few-Shot Learners", table 2.1.
std::vector<Parameter> gpt3_parameters() {
  TransformerConfig config;
  config.family = "gpt2";
  config.vocab_size = 50257;
  config.max_positions = 2048;
  config.width = 12288;
  config.layers = config.heads = config.kv_heads = 96;
  config.head_size = 128;
  config.ffn_width = 49152;
  return list_parameters(config).parameters;
}

Layout layout_of(const std::vector<Parameter>& parameters, const std::string& strategy, int world_size, int group_size) {
  return Layout(parameters, wrap_parameters(parameters, {}),
                mesh_shape(find_placement(strategy), world_size, group_size).shard);
}

/// Returns true if the reads fill all slices of the shard, each element once and at its place.
bool fills(const std::vector<PlannedRead>& plan, const Layout& layout, int shard) {
  std::vector<std::vector<PlannedRead>> of_unit(layout.units().size());
  for (const PlannedRead& read : plan) of_unit[read.unit].push_back(read);
  for (std::size_t unit = 0; unit < of_unit.size(); ++unit) {
    std::vector<PlannedRead>& reads = of_unit[unit];
    std::sort(reads.begin(), reads.end(), [](const PlannedRead& a, const PlannedRead& b) { return a.offset < b.offset; });
    auto read = reads.begin();
    for (const Slice& slice : layout.slices(unit, shard))
      for (std::size_t at = slice.range.begin; at < slice.range.end; ++read) {
        if (read == reads.end() || read->parameter != slice.parameter || read->range.begin != at || read->range.empty() ||
            read->offset != slice.shard_offset + (at - slice.range.begin))
          return false;
        at = read->range.end;
        if (at > slice.range.end) return false;
      }
    if (read != reads.end()) return false;
  }
  return true;
}

struct Files {
  std::size_t elements = 0, most = 0;           // elements of all shards; files of the shard that reads most files
  std::vector<std::size_t> elements_of_writer;  // elements read from each writer's file
  bool filled = true, within = true;
};

/// Computes the read plans of all shards.
Files plan_all(const std::vector<Parameter>& parameters, const Layout& written, int writers, const Layout& layout) {
  const Timer timer;
  const StoredParts stored(parameters, written, writers);
  const double table_ms = timer.seconds() * 1e3;
  Files files;
  files.elements_of_writer.resize(static_cast<std::size_t>(writers));
  double plan_ms = 0;
  for (int shard = 0; shard < layout.shards(); ++shard) {
    const Timer one;
    const std::vector<PlannedRead> plan = plan_reads(stored, parameters, layout, shard);
    plan_ms += one.seconds() * 1e3;
    files.filled = files.filled && fills(plan, layout, shard);
    std::set<int> opened;
    for (const PlannedRead& read : plan) {
      opened.insert(read.rank);
      files.elements += read.range.size();
      files.elements_of_writer[static_cast<std::size_t>(read.rank)] += read.range.size();
    }
    files.most = std::max(files.most, opened.size());
    if (shard % 97 != 5) continue;
    for (const int rank : opened) {  // every range must be in the file
      const auto wrote = stored::written_slices(written, rank, writers);
      for (const PlannedRead& read : plan)
        files.within = files.within && (read.rank != rank || std::any_of(wrote.begin(), wrote.end(), [&](const auto& slice) {
                                          return slice.parameter == read.parameter && slice.range.begin <= read.range.begin &&
                                                 read.range.end <= slice.range.end;
                                        }));
    }
  }
  std::printf("%d files of %d shards into %d shards: table %.1f ms, plan %.3f ms per shard, at most %zu files\n", writers,
              written.shards(), layout.shards(), table_ms, plan_ms / layout.shards(), files.most);
  return files;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_thousand_ranks_files_into_768) {
  const auto parameters = gpt3_parameters();
  std::size_t all = 0;
  for (const Parameter& parameter : parameters) all += numel(parameter.shape);
  BOOST_TEST(all == 174'604'259'328u);
  constexpr int writers = 1024;
  for (const std::string from : {"full", "hybrid"})
    for (const std::string to : {"full", "hybrid", "none"}) {
      const Layout written = layout_of(parameters, from, writers, 8), layout = layout_of(parameters, to, 768, 8);
      const Files files = plan_all(parameters, written, writers, layout);
      BOOST_TEST_CONTEXT(from << " to " << to) {
        BOOST_TEST(files.filled);
        BOOST_TEST(files.within);
        BOOST_TEST(files.elements == all);
        // A shard's fraction of 1,024 files, and one more at each end, because each unit is padded to whole shards.
        BOOST_TEST(files.most <= static_cast<std::size_t>(writers / layout.shards() + 3));
        for (int rank = 0; rank < writers; ++rank) {
          std::size_t wrote = 0;
          for (const stored::WrittenSlice& slice : stored::written_slices(written, rank, writers)) wrote += slice.range.size();
          if (files.elements_of_writer[static_cast<std::size_t>(rank)] != wrote)
            BOOST_ERROR("rank " << rank << " wrote " << wrote << " elements, and others are read of its file");
        }
      }
    }
}

BOOST_AUTO_TEST_CASE(states_by_row_and_by_column) {
  const auto parameters = gpt3_parameters();
  const StoredParts stored(parameters, layout_of(parameters, "full", 7, 1), 7);
  const Layout layout = layout_of(parameters, "full", 5, 1);
  for (const Extent extent : {Extent::row, Extent::column}) {
    std::size_t elements = 0, expected = 0;
    for (const PlannedRead& read : plan_reads(stored, parameters, layout, 3, extent)) {
      BOOST_TEST(read.rank == 0);
      elements += read.range.size();
    }
    for (std::size_t unit = 0; unit < layout.units().size(); ++unit) expected += layout.state_numel(unit, extent);
    BOOST_TEST(elements == expected);
  }
}
