// Reads HDF5 files as other tools do, with only the HDF5 library.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <hdf5.h>

namespace fsdp::test {

struct PlainDataset {
  std::vector<std::size_t> shape;
  std::vector<float> values;
};

/// Reads a whole dataset. Throws std::runtime_error.
inline PlainDataset read_plain_hdf5(const std::string& path, const std::string& name) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const hid_t dataset = file < 0 ? -1 : H5Dopen2(file, name.c_str(), H5P_DEFAULT);
  if (dataset < 0) throw std::runtime_error("HDF5 cannot open " + name + " of " + path);
  const hid_t space = H5Dget_space(dataset);
  std::vector<hsize_t> extent(static_cast<std::size_t>(H5Sget_simple_extent_ndims(space)));
  H5Sget_simple_extent_dims(space, extent.data(), nullptr);
  PlainDataset result{{extent.begin(), extent.end()},
                      std::vector<float>(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)))};
  const bool read = H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, result.values.data()) >= 0;
  H5Sclose(space);
  H5Dclose(dataset);
  H5Fclose(file);
  if (!read) throw std::runtime_error("HDF5 cannot read " + name + " of " + path);
  return result;
}

inline bool plain_hdf5_has(const std::string& path, const std::string& name) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const bool there = file >= 0 && H5Lexists(file, name.c_str(), H5P_DEFAULT) > 0;
  if (file >= 0) H5Fclose(file);
  return there;
}

}  // namespace fsdp::test
