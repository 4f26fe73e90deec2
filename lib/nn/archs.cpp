// The models that are known by name. Family::archs has their sizes.
#include "base/error.hpp"
#include "base/format.hpp"
#include "nn/config.hpp"
#include "nn/families.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

TransformerConfig arch_config(const std::string& name) {
  std::vector<std::string> names;
  for (const Family* family : families())
    for (const Arch& arch : family->archs) {
      if (name == arch.name) return arch.config;
      names.push_back(arch.name);
    }
  for (const Family* family : families())
    for (const OtherArch& arch : family->other_archs)
      if (name == arch.name)
        throw UserError(format("`architecture` {} is not supported ({}); {}", name, arch.why, arch.instead));
  const std::string meant = nearest(name, names);
  throw UserError(format("`architecture` {} is not known ({}); see `list of architectures`", name,
                         meant.empty() ? "no name is similar" : "did you mean " + meant + "?"));
}

std::vector<std::pair<std::string, std::string>> list_archs() {
  std::vector<std::pair<std::string, std::string>> list;
  for (const Family* family : families())
    for (const auto& [name, config] : family->archs)
      list.emplace_back(name, format("{} parameters, {} layers, width {}",
                                     format_count(static_cast<double>(parameter_count(config))), config.layers, config.width));
  return list;
}

}  // namespace fsdp
