// The public headers of libfsdp: #include <fsdp/fsdp.hpp>, and link with fsdp::fsdp (docs/api.md). They stay compatible within
// a minor version. All headers that this one does not include, except <fsdp/check_gradients.hpp>, are internal.
#pragma once

#include "api/checkpoint_options.hpp"
#include "api/data.hpp"
#include "api/fully_sharded.hpp"
#include "api/generator.hpp"
#include "api/job.hpp"
#include "api/learning_rate.hpp"
#include "api/metrics.hpp"
#include "api/optimizer.hpp"
#include "api/weights.hpp"
#include "base/user_error.hpp"
#include "layers/attention.hpp"
#include "layers/composition.hpp"
#include "layers/layer.hpp"
#include "layers/layers.hpp"
#include "layers/losses.hpp"
#include "layers/ops.hpp"
#include "layers/tape.hpp"

/// The version of these headers is FSDP_VERSION_MAJOR.FSDP_VERSION_MINOR.
#define FSDP_VERSION_MAJOR 0
#define FSDP_VERSION_MINOR 1
