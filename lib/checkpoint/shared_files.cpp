#include "checkpoint/shared_files.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/stored.hpp"
#include "files/input_file.hpp"
#include "files/sealed_file.hpp"

namespace fsdp {

namespace {

/// What a rank writes after its elements are on the disk. The reports of all ranks are at the end of the file, until the seal
/// replaces them.
struct Report {
  std::uint64_t save_id = 0;
  std::uint64_t sum = 0;    // of the checksums of the rank's slices in the file, each times (2 * its offset + 1)
  std::uint64_t check = 0;  // the checksum of the two before: reports are read while they are written
  std::uint64_t checked() const { return checksum(this, offsetof(Report, check)); }
};

std::uint64_t weighted(std::uint64_t sum, std::uint64_t offset) { return sum * (2 * offset + 1); }

/// The bytes after the HDF5 file, until it is sealed: the offsets of its datasets, and the reports of all ranks.
std::size_t tail_bytes(std::size_t datasets, int ranks) {
  return datasets * sizeof(std::uint64_t) + static_cast<std::size_t>(ranks) * sizeof(Report);
}

constexpr std::size_t floats_at_once = std::size_t{1} << 16;  // 256 KiB, which the cache holds

}  // namespace

SharedFiles::SharedFiles(const std::vector<Parameter>& parameters, const Layout& written, int ranks, int files,
                         std::vector<State> states)
    : parameters_(parameters),
      written_(written),
      ranks_(ranks),
      files_(files),
      states_(std::move(states)),
      layout_(parameters, {written.units().begin(), written.units().end()}, files),
      parts_(parameters, layout_, files) {}

std::vector<SharedFiles::Dataset> SharedFiles::datasets_of(int file) const {
  std::vector<Dataset> all;
  for (std::size_t s = 0; s < states_.size(); ++s) {
    const auto& [state, extent] = states_[s];
    for (const stored::WrittenSlice& slice : stored::written_slices(layout_, file, files_, extent)) {
      if (!stored::extent_of(layout_.units()[slice.unit], state)) continue;
      const Parameter& parameter = parameters_[slice.parameter];
      all.push_back({s * parameters_.size() + slice.parameter, slice.parameter, extent,
                     stored::state_shape(parameter.shape, extent), slice.range, stored::slice_name(state, parameter.name)});
    }
  }
  return all;
}

void create_shared_file(const std::filesystem::path& folder, const SharedFiles& files, int file,
                        const std::function<void(h5::File&)>& write_attributes) {
  const std::filesystem::path path = folder / stored::rank_file_name(file, files.files());
  h5::File made = h5::File::create(path);
  write_attributes(made);
  std::vector<std::uint64_t> offsets;
  for (const SharedFiles::Dataset& dataset : files.datasets_of(file)) {
    offsets.push_back(made.reserve_dataset(dataset.name, {dataset.range.size()}, DType::f32));
    h5::Dataset slice = made.dataset(dataset.name);
    stored::write_slice_attributes(slice, dataset.shape, dataset.range);
  }
  made.close();
  OutputFile output(path, OutputFile::Open::existing);
  const std::uint64_t end = output.size();
  output.write(end, offsets.data(), offsets.size() * sizeof offsets[0]);
  output.resize(end + tail_bytes(offsets.size(), files.ranks()));
}

// --- writing ---

SharedFileWriter::File::File(const std::filesystem::path& folder, const SharedFiles& files, int file)
    : output(folder / stored::rank_file_name(file, files.files()), OutputFile::Open::existing) {
  const std::vector<SharedFiles::Dataset> datasets = files.datasets_of(file);
  std::vector<std::uint64_t> all(datasets.size());
  output.read(output.size() - tail_bytes(all.size(), files.ranks()), all.data(), all.size() * sizeof all[0]);
  for (std::size_t d = 0; d < all.size(); ++d) offsets[datasets[d].name] = all[d];
}

void SharedFileWriter::begin(const std::string& name, std::size_t parameter, Extent extent, Range range) {
  end_slice();
  for (const StoredPart& part : files_.parts().of(files_.parameters()[parameter].name, range, extent)) {
    File& file = open_.try_emplace(part.rank, folder_, files_, part.rank).first->second;
    const Range common = intersect(part.range, range);
    slice_.push_back({&file,
                      {common.begin - range.begin, common.end - range.begin},
                      file.offsets.at(name) + (common.begin - part.range.begin) * sizeof(float),
                      {}});
  }
}

void SharedFileWriter::add(Range range, const float* values) {
  for (Part& part : slice_) {
    const Range common = intersect(part.range, range);
    if (common.empty()) continue;
    const float* const from = values + (common.begin - range.begin);
    part.sum.add(from, common.size() * sizeof(float));
    part.file->output.write(part.offset + (common.begin - part.range.begin) * sizeof(float), from,
                            common.size() * sizeof(float));
  }
}

void SharedFileWriter::end_slice() {
  for (const Part& part : slice_) part.file->sum += weighted(part.sum.value(), part.offset);
  slice_.clear();
}

void SharedFileWriter::finish() {
  end_slice();
  for (auto& [number, file] : open_) {
    file.output.sync();
    Report report{save_id_, file.sum};
    report.check = report.checked();
    const auto after = static_cast<std::size_t>(files_.ranks() - rank_);  // this report and those of later ranks
    file.output.write(file.output.size() - after * sizeof report, &report, sizeof report);
  }
  open_.clear();
}

// --- sealing ---

SharedFileSealer::SharedFileSealer(const std::filesystem::path& folder, const SharedFiles& files, int file,
                                   std::uint64_t save_id)
    : path_(folder / stored::rank_file_name(file, files.files())),
      ranks_(files.ranks()),
      save_id_(save_id),
      datasets_(files.datasets_of(file)) {
  const StoredParts by_rank = files.parts_of_ranks();
  for (std::size_t d = 0; d < datasets_.size(); ++d) {
    const auto& [tensor, parameter, extent, shape, range, name] = datasets_[d];
    for (const StoredPart& part : by_rank.of(files.parameters()[parameter].name, range, extent)) {
      const Range common = intersect(part.range, range);
      pieces_.push_back({d, part.rank, common.begin - range.begin, common.end - range.begin});
      found_[part.rank] = 0;
    }
  }
}

std::map<int, std::uint64_t> SharedFileSealer::reports(const InputFile& file) const {
  std::vector<Report> all(static_cast<std::size_t>(ranks_));
  file.read(file.size() - all.size() * sizeof(Report), all.data(), all.size() * sizeof(Report));
  std::map<int, std::uint64_t> sums;
  for (const auto& [rank, sum] : found_)
    if (const Report& report = all[static_cast<std::size_t>(rank)];
        report.save_id == save_id_ && report.check == report.checked())
      sums[rank] = report.sum;
  return sums;
}

bool SharedFileSealer::is_written() {
  if (!polled_) polled_.emplace(path_);
  return reports(*polled_).size() == found_.size();
}

FileSum SharedFileSealer::seal(std::vector<kernels::ExactSum>& squares) {
  const auto lost = [&](int rank) {
    throw RunError(format(
        "{} does not have the numbers that rank {} wrote there (the file system lost them); save `with a file per rank`, "
        "or choose another `save folder`",
        path_.string(), rank));
  };
  const std::map<int, std::uint64_t> written = reports(InputFile(path_));  // opened anew: NFS then asks its server
  for (const auto& [rank, sum] : found_)
    if (!written.contains(rank)) lost(rank);
  OutputFile file(path_, OutputFile::Open::existing);
  const std::uint64_t end = file.size() - tail_bytes(datasets_.size(), ranks_);
  std::vector<std::uint64_t> offsets(datasets_.size());
  file.read(end, offsets.data(), offsets.size() * sizeof offsets[0]);
  const auto offset_of = [&](const Piece& piece) { return offsets[piece.dataset] + piece.begin * sizeof(float); };
  std::sort(pieces_.begin(), pieces_.end(), [&](const Piece& a, const Piece& b) { return offset_of(a) < offset_of(b); });
  file.resize(end);
  Sealer sealer(file, file.size());
  const auto stream = make_host_stream();
  std::vector<float> values(floats_at_once);
  RunningSum of_dataset, of_piece;
  for (const Piece& piece : pieces_) {
    const SharedFiles::Dataset& dataset = datasets_[piece.dataset];
    const std::uint64_t begin = offset_of(piece);
    for (std::size_t at = piece.begin; at < piece.end; at += values.size()) {
      const std::size_t n = std::min(values.size(), piece.end - at), bytes = n * sizeof(float);
      const std::uint64_t offset = begin + (at - piece.begin) * sizeof(float);
      file.read(offset, values.data(), bytes);
      sealer.add(offset, values.data(), bytes);
      of_dataset.add(values.data(), bytes);
      of_piece.add(values.data(), bytes);
      kernels::add_squares(*stream, squares[dataset.tensor], values.data(), n);
    }
    found_[piece.rank] += weighted(of_piece.value(), begin);
    of_piece.reset();
    if (piece.end == dataset.range.size()) {
      sealer.name({dataset.name, offsets[piece.dataset], piece.end * sizeof(float), of_dataset.value()});
      of_dataset.reset();
    }
  }
  for (const auto& [rank, sum] : found_)
    if (written.at(rank) != sum) lost(rank);
  const FileSum sum = sealer.finish();
  file.finish();
  return sum;
}

}  // namespace fsdp
