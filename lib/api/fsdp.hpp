// All that programs use of libfsdp: #include <fsdp/fsdp.hpp>, and link with fsdp::fsdp (docs/api.md). These headers keep their
// meaning within a minor version; those of the other folders are the library's own.
#pragma once

#include "api/fully_sharded.hpp"
#include "api/job.hpp"
#include "api/layer.hpp"
#include "api/layers.hpp"
#include "api/ops.hpp"
#include "base/error.hpp"

#define FSDP_VERSION_MAJOR 0
#define FSDP_VERSION_MINOR 1
