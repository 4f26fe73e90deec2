#include "checkpoint/hugging_face_files.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/format.hpp"

namespace fsdp {

bool is_consolidated_file(const std::string& given) {
  std::string name = given;
  for (const char* suffix : {".tmp", ".xxh3"})
    if (name.ends_with(suffix)) name.resize(name.size() - std::strlen(suffix));
  if (name == "config.json" || std::find(kept_files.begin(), kept_files.end(), name) != kept_files.end()) return true;
  for (const char* kind : {"model", "optimizer"}) {
    if (name == format("{}.safetensors", kind) || name == format("{}.safetensors.index.json", kind)) return true;
    int file = 0, files = 0, end = 0;
    if (std::sscanf(name.c_str(), format("{}-%9d-of-%9d.safetensors%n", kind).c_str(), &file, &files, &end) == 2 &&
        static_cast<std::size_t>(end) == name.size())
      return true;
  }
  return false;
}

}  // namespace fsdp
