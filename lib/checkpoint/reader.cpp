// Reads a sharded checkpoint. The header is enough to compute which rank file holds which elements, so a read opens only the
// files with a part of the range, and reads only that part.
#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <mutex>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/stored.hpp"
#include "files/sealed_file.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t open_files = 16;  // the most rank files open at a time

[[noreturn]] void damaged(const fs::path& path, const std::string& why) {
  throw DamagedError(format("{} is damaged ({}); restore it from a copy, or use another step", path.string(), why));
}

class ShardedCheckpoint final : public CheckpointReader {
 public:
  ShardedCheckpoint(const fs::path& folder, Verify verify, Weights weights)
      : folder_(folder), verify_(verify), weights_(weights), marker_(stored::read_complete(folder)) {
    const fs::path path = index_path();
    index_ = stored::read_index_attributes(open_index(), path.string());
    const CheckpointHeader& header = index_.header;
    if (index_.save_id != marker_.save_id || static_cast<std::size_t>(header.world_size) + 1 != marker_.files.size())
      damaged(path, "it belongs to another save than the other files");
    const std::vector<Parameter> parameters = header.model.parameters();
    const Layout layout(parameters, header.units, header.shards);
    tensors_.resize(parameters.size());
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      tensors_[p] = {parameters[p].name, parameters[p].shape, {}};
      by_name_[parameters[p].name] = p;
    }
    for (const Unit& unit : layout.units())
      for (const std::size_t p : unit.parameters) tensors_[p].unit = unit;
    parts_.emplace(parameters, layout, header.world_size);
    if (weights_ == Weights::average && std::erase(index_.states, average_state) == 0)
      throw UserError(
          format("{} has no average of the weights (its run kept none); leave out `weights of the average`, or "
                 "use another checkpoint",
                 description()));
  }

  const fs::path& folder() const override { return folder_; }
  std::vector<fs::path> files() const override {
    std::vector<fs::path> all = {folder_ / stored::marker_name};
    for (const stored::Marker::File& file : marker_.files) all.push_back(folder_ / file.name);
    return all;
  }
  std::size_t file_bytes() const override {
    std::size_t bytes = 0;
    for (const stored::Marker::File& file : marker_.files) bytes += file.sum.bytes;
    return bytes;
  }
  const CheckpointHeader& header() const override { return index_.header; }
  std::vector<std::string> states() const override { return index_.states; }
  StoredModel model() const override { return index_.header.model; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const Tensor& tensor : tensors_)
      if (tensor.unit.saved) all.push_back(tensor.name);
    return all;
  }
  std::size_t bytes_read() const override { return bytes_read_; }
  std::string description() const override {
    const int ranks = index_.header.ranks, files = index_.header.world_size;
    return format("checkpoint {} ({}{})", folder_.string(), plural(ranks, "rank"),
                  files == ranks ? "" : format(" in {}", plural(files, "file")));
  }

  bool was_trained(const std::string& name) const override { return find(name).unit.trainable; }
  bool has_state(const std::string& state, const std::string& name) const override {
    if (std::find(index_.states.begin(), index_.states.end(), state) == index_.states.end()) return false;
    return by_name_.contains(name) && stored::extent_of(find(name).unit, state);
  }
  std::optional<double> norm(const std::string& state, const std::string& name) const override {
    const auto found = marker_.norms.find(stored::whole_name(stored_state(state, name), name));
    return found == marker_.norms.end() ? std::nullopt : std::optional(found->second);
  }

  Shape state_shape(const std::string& state, const std::string& name) const override {
    return stored::state_shape(find(name).shape, extent_of(state, name));
  }
  const StoredParts& parts() const override { return *parts_; }

  std::map<std::string, std::size_t> user_data_sizes() const override { return stored::user_data_sizes(open_index()); }
  std::string read_user_data(const std::string& name) const override { return stored::read_user_data(open_index(), name); }

  void read_state(const std::string& state, const std::string& name, Range range, float* out) const override {
    const Extent extent = extent_of(state, name);
    expect(range.begin <= range.end && range.end <= numel(state_shape(state, name)), "a range is outside its tensor");
    const std::lock_guard lock(mutex_);
    for (const StoredPart& part : parts_->of(name, range, extent)) {
      const Range common = intersect(part.range, range);
      read_part(part, stored::slice_name(stored_state(state, name), name), common, out + (common.begin - range.begin));
      bytes_read_ += common.size() * sizeof(float);
    }
  }

  void prefetch_state(const std::string& state, const std::string& name, Range range) const override {
    if (!has_state(state, name)) return;
    const std::lock_guard lock(mutex_);
    try {
      for (const StoredPart& part : parts_->of(name, range, *stored::extent_of(find(name).unit, state))) {
        const Range common = intersect(part.range, range);
        const h5::File& file = rank_file(part.rank);
        if (const auto offset = file.dataset(stored::slice_name(stored_state(state, name), name)).offset())
          file.prefetch(*offset + (common.begin - part.range.begin) * sizeof(float), common.size() * sizeof(float));
      }
    } catch (const std::runtime_error&) {
      // The read that follows reports the error.
    }
  }

  void verify(int part, int parts, const ByteProgress& progress) const override {
    expect(parts >= 1 && part >= 0 && part < parts, "a part of the files to verify");
    std::size_t done = 0, all = 0;
    for (std::size_t i = static_cast<std::size_t>(part); i < marker_.files.size(); i += static_cast<std::size_t>(parts))
      all += marker_.files[i].sum.bytes;
    for (std::size_t i = static_cast<std::size_t>(part); i < marker_.files.size(); i += static_cast<std::size_t>(parts)) {
      const stored::Marker::File& file = marker_.files[i];
      const FileSum found = sum_file(folder_ / file.name, [&](std::size_t bytes) {
        done += bytes;
        if (progress) progress(done, all);
      });
      if (found == file.sum) continue;
      const std::string where = i + 1 < marker_.files.size() ? damaged_tensor(static_cast<int>(i)) : "";
      damaged(folder_ / file.name, format("its checksum is {}, but was {} when it was written{}", checksum_text(found.checksum),
                                          checksum_text(file.sum.checksum), where));
    }
  }

 private:
  struct Tensor {
    std::string name;
    Shape shape;
    UnitSpec unit;  // the FSDP unit that contained the tensor when the checkpoint was saved
  };
  struct OpenFile {
    int rank;
    h5::File file;
  };

  const Tensor& find(const std::string& name) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
      throw UserError(
          format("{} has no tensor {} (its model has none of that name); fsdp-inspect lists its tensors", description(), name));
    return tensors_[found->second];
  }

  Extent extent_of(const std::string& state, const std::string& name) const {
    if (std::find(index_.states.begin(), index_.states.end(), state) == index_.states.end())
      throw UserError(format("{} has no {} (its states are {}); use another checkpoint, or start with a new optimizer",
                             description(), state, fmt::join(index_.states, ", ")));
    if (const auto extent = stored::extent_of(find(name).unit, state)) return *extent;
    throw UserError(format("{} has no {} of {} (it was not trained); use another checkpoint", description(), state, name));
  }

  /// The state that is read for `state` of a tensor.
  std::string stored_state(const std::string& state, const std::string& name) const {
    const bool is_average = weights_ == Weights::average && state == parameters_state && find(name).unit.is_averaged();
    return is_average ? average_state : state;
  }

  fs::path index_path() const { return folder_ / stored::index_name; }
  h5::File open_index() const { return h5::File::open(index_path(), Verify::yes, marker_.files.back().sum); }
  fs::path rank_path(int rank) const { return folder_ / stored::rank_file_name(rank, index_.header.world_size); }

  /// Returns an open rank file. Opens it if necessary; if too many are open then, the least recently used one is closed. The
  /// caller must hold the mutex.
  const h5::File& rank_file(int rank) const {
    const auto found = std::find_if(files_.begin(), files_.end(), [rank](const OpenFile& open) { return open.rank == rank; });
    if (found != files_.end()) {
      files_.splice(files_.begin(), files_, found);
      return files_.front().file;
    }
    const FileSum& sum = marker_.files[static_cast<std::size_t>(rank)].sum;
    h5::File file = h5::File::open(rank_path(rank), verify_, sum);
    stored::check_kind(file, rank_path(rank).string(), stored::rank_kind);
    if (file.read_integer("save_id") != index_.save_id || file.read_integer("rank") != static_cast<std::uint64_t>(rank))
      damaged(rank_path(rank), "it belongs to another save than the index");
    if (files_.size() == open_files) files_.pop_back();
    files_.push_front({rank, std::move(file)});
    return files_.front().file;
  }

  void read_part(const StoredPart& part, const std::string& name, Range range, float* out) const {
    const h5::Dataset dataset = rank_file(part.rank).dataset(name);
    if (dataset.shape() != Shape{part.range.size()} || dataset.read_integer("begin") != part.range.begin)
      damaged(rank_path(part.rank), format("{} does not have the elements {} to {}", name, part.range.begin, part.range.end));
    dataset.read({range.begin - part.range.begin, range.end - part.range.begin}, out);
  }

  /// Returns ", in exp_avg/wte.weight" to name the first tensor with a wrong checksum in a damaged file. Does not use HDF5.
  std::string damaged_tensor(int rank) const {
    try {
      const CheckedFile file(rank_path(rank), Verify::no);
      const std::string name = file.damaged_part(0, file.size());
      return name.empty() ? "" : ", in " + name;
    } catch (const std::exception&) {
      return ", in its list of checksums";
    }
  }

  fs::path folder_;
  Verify verify_;
  Weights weights_;
  stored::Marker marker_;
  stored::Index index_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t> by_name_;
  std::optional<StoredParts> parts_;
  mutable std::mutex mutex_;
  mutable std::list<OpenFile> files_;  // most recently used first
  mutable std::atomic<std::size_t> bytes_read_ = 0;
};

/// The folder that a link names. A run may move the link meanwhile, so that its files would be those of two steps.
fs::path target_of(fs::path path) {
  std::error_code no_link;
  for (int links = 0; links < 40; ++links) {
    const fs::path target = fs::read_symlink(path, no_link);
    if (no_link) break;
    path = path.parent_path() / target;
  }
  return path;
}

}  // namespace

std::unique_ptr<CheckpointReader> CheckpointReader::open(const fs::path& folder, Verify verify, Weights weights) {
  for (;;) {
    const fs::path step = target_of(folder);
    try {
      return std::make_unique<ShardedCheckpoint>(step, verify, weights);
    } catch (const std::exception&) {
      if (target_of(folder) == step) throw;  // else the run has removed the step meanwhile
    }
  }
}

}  // namespace fsdp
