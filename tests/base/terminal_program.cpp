// Prints what it knows of the terminal that shows its stderr.
#include "base/program.hpp"
#include "base/terminal.hpp"

int main() {
  const fsdp::Terminal terminal(stderr);
  fsdp::print_to(stderr, "draws {}, width {}\n", terminal.draws(), terminal.width());
  fsdp::print_warning("of this");
}
