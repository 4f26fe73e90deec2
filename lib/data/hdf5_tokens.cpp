#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "base/format.hpp"
#include "data/formats.hpp"
#include "data/stored_integers.hpp"
#include "h5/h5.hpp"

namespace fsdp {

namespace {

/// Opens the file, and finds the dataset of its tokens.
struct OpenedFile {
  explicit OpenedFile(const std::filesystem::path& path, const char* dataset = nullptr)
      : file(h5::File::open(path, Verify::no)),
        names(file.dataset_names("/")),
        tokens(file.integers(dataset ? dataset : name_of_tokens(path))) {
    if (tokens.shape().size() > 2)
      throw unusable_tokens(path, format("its tokens have {} dimensions, and one or two are read", tokens.shape().size()));
    tokens.require_whole();
  }
  std::string name_of_tokens(const std::filesystem::path& path) const {
    for (const char* known : {"tokens", "input_ids"})
      if (has(known)) return known;
    if (names.size() == 1) return names.front();
    throw unusable_tokens(
        path, names.empty() ? "it is an HDF5 file without datasets"
                            : format("it is an HDF5 file of {} datasets, none of which is called \"tokens\" or \"input_ids\"",
                                     names.size()));
  }
  bool has(const char* name) const { return std::find(names.begin(), names.end(), name) != names.end(); }

  h5::File file;
  std::vector<std::string> names;
  h5::Integers tokens;
};

/// What HDF5 does with a damaged file is tried in another process, at 256 places: it crashes before it fails.
void try_file(const std::filesystem::path& path) {
  const std::string end = h5::what_ends_hdf5(
      [&] {
        try {
          const OpenedFile opened(path);
          const std::size_t n = numel(opened.tokens.shape());
          std::int64_t element = 0;
          for (std::size_t at = 0; at < n; at += std::max<std::size_t>(n / 256, 1)) opened.tokens.read({at, at + 1}, &element);
        } catch (const std::exception&) {  // said by whoever opens it
        }
      },
      /*seconds=*/10);
  if (!end.empty())
    throw DamagedError(
        format("{} is damaged (it was read in a process of its own first, and {}); copy it again, or make it anew",
               path.string(), end));
}

class Hdf5Tokens : public Tokens {
 public:
  /// `dataset` null: that of the tokens.
  explicit Hdf5Tokens(const std::filesystem::path& path, const char* dataset = nullptr)
      : path_(path),
        name_(dataset ? format("\"{}\" of '{}'", dataset, path.string()) : format("'{}'", path.string())),
        opened_(path, dataset) {}

  std::uint64_t size() const override { return numel(opened_.tokens.shape()); }
  void read(std::uint64_t begin, std::span<std::uint32_t> out) const override {
    std::array<std::int64_t, 4096> piece;
    for (std::size_t done = 0; done < out.size();) {
      const std::size_t n = std::min(piece.size(), out.size() - done);
      opened_.tokens.read({begin + done, begin + done + n}, piece.data());
      for (std::size_t i = 0; i < n; ++i) {
        out[done + i] = static_cast<std::uint32_t>(piece[i] < 0 ? no_token : std::min<std::int64_t>(piece[i], no_token));
      }
      done += n;
    }
  }
  std::string name() const override { return name_; }
  std::uint64_t largest_possible() const override {
    return IntegerType{opened_.tokens.bytes(), opened_.tokens.is_signed()}.largest();
  }
  bool has_documents() const override { return opened_.has(lengths_name); }
  std::unique_ptr<Tokens> mask() const override {
    return opened_.has(mask_name) ? std::make_unique<Hdf5Tokens>(path_, mask_name) : nullptr;
  }
  std::vector<std::uint64_t> documents() const override {
    const h5::Integers lengths = opened_.file.integers(lengths_name);
    const std::size_t count = numel(lengths.shape());
    std::vector<std::uint64_t> starts;
    std::vector<std::int64_t> piece(std::min<std::size_t>(count, 1u << 16));
    std::uint64_t start = 0;
    for (std::size_t begin = 0; begin < count; begin += piece.size()) {
      const std::size_t n = std::min(piece.size(), count - begin);
      lengths.read({begin, begin + n}, piece.data());
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint64_t left = size() - start;
        if (piece[i] < 0 || static_cast<std::uint64_t>(piece[i]) > left)
          throw UserError(
              format("{} has a document {} of {} tokens, and {} are left (its \"{}\" do not belong to its tokens); "
                     "write it anew",
                     name_, begin + i, piece[i], left, lengths_name));
        if (piece[i] > 0) starts.push_back(start);
        start += static_cast<std::uint64_t>(piece[i]);
      }
    }
    if (start != size())
      throw UserError(
          format("{} has documents of {} tokens together, and {} tokens (its \"{}\" do not belong to its tokens); "
                 "write it anew",
                 name_, start, size(), lengths_name));
    return starts;
  }

 private:
  static constexpr const char *lengths_name = "document_lengths", *mask_name = "loss_mask";
  std::filesystem::path path_;
  std::string name_;
  OpenedFile opened_;
};

}  // namespace

const TokenFormat& hdf5_tokens() {
  static constexpr TokenFormat row = {
      "HDF5",
      [](const std::filesystem::path&, std::string_view beginning) { return beginning.starts_with("\x89HDF\r\n\x1a\n"); },
      [](const std::filesystem::path& path) -> std::unique_ptr<Tokens> {
        try_file(path);
        return std::make_unique<Hdf5Tokens>(path);
      }};
  return row;
}

}  // namespace fsdp
