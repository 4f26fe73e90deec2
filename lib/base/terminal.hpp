// The terminal on which a program's text is shown: its width, and whether it shows colours; text in lines of a width.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

namespace fsdp {

/// Breaks `text` at spaces into lines of at most `width` characters that begin at column `indent`. The first line gets no
/// spaces, because the caller has already written up to that column.
std::string wrap(const std::string& text, std::size_t indent, std::size_t width);

/// The values are codes of ECMA-48.
enum class Colour { bold = 1, red = 31, green = 32, yellow = 33 };

/// The terminal that shows the text of a stream, if there is one.
///
/// The processes that mpirun starts write into pipes, and mpirun copies their text to its own output. The terminal of such a
/// process is that of mpirun, if mpirun runs on the same host and adds nothing to the text (its rank, for example). Known are
/// Open MPI's orterun and MPICH's Hydra, both of which pass on every piece of text at once. A job under srun has no terminal:
/// the process that copies its text is not one of its parents, and may run on another host.
class Terminal {
 public:
  explicit Terminal(std::FILE* out);
  Terminal(const Terminal&) = delete;
  ~Terminal();

  /// Returns true if there is a terminal that can overwrite a line. According to the environment variable TERM, some cannot.
  bool draws() const;
  /// The width in characters; 0 if it is unknown.
  std::size_t width() const;
  /// Returns `text` in this colour. Without a terminal, or if the environment variable NO_COLOR is set (https://no-color.org),
  /// returns `text` unchanged.
  std::string coloured(std::string_view text, Colour colour) const;

 private:
  int fd_ = -1;  // -1: no terminal
  bool owned_ = false;
};

}  // namespace fsdp
