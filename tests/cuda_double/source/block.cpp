// Blocks and their lanes. A lane is a fiber: it has its own stack, on the thread of the stream. The thread runs one lane until
// it waits for others, then another one. This file is compiled without sanitizers: to ThreadSanitizer, a block is one thread.
#include <cxxabi.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "cuda_double_tensor_core.h"
#include "double.hpp"

extern "C" {
// AddressSanitizer's, in programs that are linked with it.
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, std::size_t* old_size);

/// Saves the registers that a function must keep (System V ABI, AMD64, figure 3.4) on the stack, and the stack's address in
/// *from; continues where `to` was saved.
void fsdp_cuda_double_switch(void** from, void* to);
}
asm(R"(
.text
.globl fsdp_cuda_double_switch
.hidden fsdp_cuda_double_switch
.type fsdp_cuda_double_switch, @function
fsdp_cuda_double_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size fsdp_cuda_double_switch, .-fsdp_cuda_double_switch
)");

constinit FSDP_CUDA_DOUBLE_LANE uint3 threadIdx{}, blockIdx{};
constinit FSDP_CUDA_DOUBLE_LANE dim3 blockDim{}, gridDim{};

namespace fsdp::cuda_double {

namespace {

constexpr unsigned warp_lanes = 32;
constexpr std::size_t stack_bytes = std::size_t{64} * 1024;

struct AsyncCopy {
  void* to;
  const void* from;  // null: zeros
  unsigned bytes, group;
};

struct Lane {
  enum { ready, waits, returned } state = ready;
  GuardedPages stack = {};  // from the lane's begin to its return
  void* left_at = nullptr;
  unsigned groups = 0;  // of copies that it has committed
  std::vector<AsyncCopy> copies = {};
};

/// Lanes that wait for each other: a warp, or all lanes of a block.
struct Barrier {
  unsigned arrived = 0;
  Together together = nullptr;
  void* brought[warp_lanes] = {};  // by the lanes of a warp
};

/// Runs blocks on one thread.
class Runner {
 public:
  Runner() = default;
  Runner(const Runner&) = delete;
  ~Runner() {
    for (const GuardedPages& stack : free_stacks_) unmap(stack);
    if (shared_pages_.mapping) unmap(shared_pages_);
  }
  void run(const Launch& launch, std::minstd_rand& dice);
  std::byte* shared_memory() const { return shared_; }

  // Called by lanes.
  void wait_for_block() { wait(block_, 0, launch_->threads); }
  void wait_for_warp(void* mine, Together together);
  Lane& current() { return lanes_[threadIdx.x]; }
  [[noreturn]] void fault(const std::string& text) const;

 private:
  void run_block(std::minstd_rand& dice);
  bool run_lane(unsigned index);
  void wait(Barrier& barrier, unsigned first, unsigned count);
  void leave();
  static void lane_main();

  const Launch* launch_ = nullptr;
  std::vector<Lane> lanes_;
  Barrier block_;
  std::vector<Barrier> warps_;
  std::vector<GuardedPages> free_stacks_;
  GuardedPages shared_pages_;
  std::byte* shared_ = nullptr;
  void *thread_left_at_ = nullptr, *fake_stack_ = nullptr;
  const void* thread_bottom_ = nullptr;  // for AddressSanitizer
  std::size_t thread_bytes_ = 0;
};

/// The thread's own. It is made when the thread runs its first block.
constinit FSDP_CUDA_DOUBLE_LANE Runner* runner = nullptr;
struct RunnerOwner {
  ~RunnerOwner() { delete runner; }
};

void Runner::run(const Launch& launch, std::minstd_rand& dice) {
  launch_ = &launch;
  if (launch.shared > 0) {
    if (!shared_pages_.mapping) shared_pages_ = map_guarded(std::size_t{227} * 1024);  // the most of any device
    shared_ = shared_pages_.end - (launch.shared + 127) / 128 * 128;
  }
  gridDim = {launch.blocks, 1, 1};
  blockDim = {launch.threads, 1, 1};
  std::vector<unsigned> order(launch.blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), dice);
  for (const unsigned block : order) {
    blockIdx = {block, 0, 0};
    run_block(dice);
  }
  shared_ = nullptr;
}

/// Lanes begin at the first or the last one. In some blocks all lanes take turns, in others a warp runs as far as it can.
void Runner::run_block(std::minstd_rand& dice) {
  if (shared_) std::memset(shared_, 0xff, launch_->shared);
  const unsigned threads = launch_->threads, random = dice();
  const bool backwards = random & 16u, far = random & 32u;
  lanes_.assign(threads, Lane());
  warps_.assign((threads + warp_lanes - 1) / warp_lanes, Barrier());
  block_ = Barrier();
  for (bool any_ran = true; any_ran;) {
    any_ran = false;
    for (unsigned begin = 0; begin < threads; begin += warp_lanes)
      for (bool ran = true; ran; ran = ran && far) {
        ran = false;
        for (unsigned i = begin; i < std::min(begin + warp_lanes, threads); ++i)
          ran = run_lane(backwards ? threads - 1 - i : i) || ran;
        any_ran = any_ran || ran;
      }
  }
  for (const Lane& lane : lanes_)
    if (lane.state != Lane::returned) fault("lanes wait for different barriers, or for lanes that have returned");
}

/// Returns false if the lane waits or has returned.
bool Runner::run_lane(unsigned index) {
  Lane& lane = lanes_[index];
  if (lane.state != Lane::ready) return false;
  threadIdx = {index, 0, 0};
  if (!lane.stack.mapping) {
    if (free_stacks_.empty()) free_stacks_.push_back(map_guarded(stack_bytes));
    lane.stack = free_stacks_.back();
    free_stacks_.pop_back();
    // As fsdp_cuda_double_switch() leaves a stack: six registers, where to continue, and the address of no caller. A function
    // finds the stack 8 bytes off a multiple of 16.
    auto** const top = reinterpret_cast<void**>(lane.stack.end) - 8;
    std::fill_n(top, 8, nullptr);
    top[6] = reinterpret_cast<void*>(&Runner::lane_main);
    lane.left_at = top;
  }
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&fake_stack_, lane.stack.begin, stack_bytes);
  fsdp_cuda_double_switch(&thread_left_at_, lane.left_at);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
  if (lane.state == Lane::returned) free_stacks_.push_back(lane.stack);
  return true;
}

/// Returns to the thread, and comes back when the thread runs this lane again.
void Runner::leave() {
  Lane& lane = current();
  void* fake_stack = nullptr;
  if (__sanitizer_start_switch_fiber)
    __sanitizer_start_switch_fiber(lane.state == Lane::returned ? nullptr : &fake_stack, thread_bottom_, thread_bytes_);
  fsdp_cuda_double_switch(&lane.left_at, thread_left_at_);
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(fake_stack, &thread_bottom_, &thread_bytes_);
}

void Runner::lane_main() {
  Runner& r = *runner;
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(nullptr, &r.thread_bottom_, &r.thread_bytes_);
  r.launch_->lane();
  r.current().state = Lane::returned;
  r.leave();
}

void Runner::wait(Barrier& barrier, unsigned first, unsigned count) {
  current().state = Lane::waits;
  if (++barrier.arrived == count) {
    if (barrier.together) barrier.together(barrier.brought);
    for (unsigned i = first; i < first + count; ++i) lanes_[i].state = Lane::ready;
    barrier.arrived = 0;
  }
  leave();
}

void Runner::wait_for_warp(void* mine, Together together) {
  Barrier& warp = warps_[threadIdx.x / warp_lanes];
  if (warp.arrived > 0 && warp.together != together) fault("lanes of a warp are at different barriers");
  warp.together = together;
  warp.brought[lane_of_warp()] = mine;
  wait(warp, threadIdx.x - lane_of_warp(), warp_lanes);
}

void Runner::fault(const std::string& text) const {
  int status = 0;
  const char* const name = abi::__cxa_demangle(launch_->kernel->name(), nullptr, nullptr, &status);
  die("kernel " + std::string(status == 0 ? name : launch_->kernel->name()) + ", block " + std::to_string(blockIdx.x) +
      ", lane " + std::to_string(threadIdx.x) + ": " + text);
}

}  // namespace

void run(const Launch& launch, std::minstd_rand& dice) {
  static thread_local const RunnerOwner owner;
  if (!runner) runner = new Runner;
  runner->run(launch, dice);
}

std::byte* dynamic_shared() { return runner->shared_memory(); }
void meet(void* mine, Together together) { runner->wait_for_warp(mine, together); }
void refuse(const std::string& text) { runner->fault(text); }

void copy_async(void* to, const void* from, unsigned bytes, bool there) {
  for (const void* const address : {static_cast<const void*>(to), from})
    if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) refuse("a copy is not aligned to its bytes");
  Lane& lane = runner->current();
  lane.copies.push_back({to, there ? from : nullptr, bytes, lane.groups});
  std::memset(to, 0xff, bytes);
}
void commit_copies() { ++runner->current().groups; }
void wait_copies(unsigned groups) {
  Lane& lane = runner->current();
  std::erase_if(lane.copies, [&](const AsyncCopy& copy) {
    if (copy.group + groups >= lane.groups) return false;
    if (copy.from)
      std::memcpy(copy.to, copy.from, copy.bytes);
    else
      std::memset(copy.to, 0, copy.bytes);
    return true;
  });
}

}  // namespace fsdp::cuda_double

void __syncthreads() { fsdp::cuda_double::runner->wait_for_block(); }
