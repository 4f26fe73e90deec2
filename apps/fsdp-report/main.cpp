// fsdp-report: draws figures from the files of other programs. It is one process without MPI.
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "files/output_file.hpp"
#include "fsdp-report/figure.hpp"
#include "train/program.hpp"

using namespace fsdp;

int main(int argc, char** argv) {
  FigureOptions figure;
  std::vector<std::string> files;
  std::filesystem::path out;
  OptionTable table("fsdp-report", "--figure NAME [TITLE=]FILE... --out FILE.svg [options]",
                    "Draws a figure from the files of other programs.");
  table.group("What");
  table.list("files", "FILE", files, "What to draw. A word before '=' is its title.").positional().required();
  add_figure_options(table, figure);
  table.path("out", "FILE", out, "The SVG file to write.").required();
  return run_program(argc, argv, table, [&] {
    if (figure.figure.empty()) throw UserError("--figure is missing (what to draw); see fsdp-report --help");
    if (out.empty()) throw UserError("--out is missing (where to write the figure); give --out FILE.svg");
    write_text_file_durably(out, draw_figure(figure, files));
    return exit_code::done;
  });
}
