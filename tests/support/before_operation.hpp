// Lets a test delay operations of an executor, or let them fail.
#pragma once

#include <functional>

#include "run/observer.hpp"

namespace fsdp::test {

/// Calls a function before each operation, in the thread that runs it.
class BeforeOperation : public Observer {
 public:
  explicit BeforeOperation(std::function<void(const Operation&)> call) : call_(std::move(call)) {}
  void begin(const ListRun& run, std::size_t index) override { call_(run.operations[index]); }

 private:
  const std::function<void(const Operation&)> call_;
};

}  // namespace fsdp::test
