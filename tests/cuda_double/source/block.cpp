// Blocks and their lanes. A lane is a fiber: it has its own stack, on the thread of the stream. This file is compiled without
// sanitizers; if a program is linked with them, it announces fibers through their functions.
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "cuda_double_tensor_core.h"
#include "double.hpp"

// Not there without the sanitizer.
extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, std::size_t* old_size);

/// Saves the calling fiber's registers on its stack, and where that is in *from; goes on where `to` was saved. The registers
/// are those that a function must keep (System V ABI, AMD64, figure 3.4); kernels do not change how floating-point numbers are
/// rounded.
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

constexpr unsigned most_lanes = 1024, warp_lanes = 32;
constexpr std::size_t stack_bytes = std::size_t{64} * 1024;

/// Whether ThreadSanitizer is to miss barriers between lanes. That makes it slow: its clocks have a number for each lane of
/// each stream. To find what nothing keeps in order between streams and the host, the lanes of a block may be one thread to it.
bool watches_lanes() {
  static const bool watches = __tsan_create_fiber && environment_number("FSDP_CUDA_DOUBLE_LANES_IN_ORDER", 0) == 0;
  return watches;
}

/// What sanitizers are told of a stack.
struct Stack {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  void* tsan = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

/// A fiber, which runs one lane after another.
struct Fiber {
  GuardedPages pages;
  Stack stack;
  void* left_at = nullptr;  // when its lane had returned
};

enum class State : std::uint8_t { ready, at_block_barrier, at_warp_barrier, returned };

/// A line of the cache, as lanes take turns after few instructions.
struct alignas(64) Lane {
  Fiber* fiber;
  void* left_at;
  // The call that it waits in, unless it is ready or has returned:
  const char* name;
  Where where;
  // The value that it passes to a call, and the result:
  std::uint64_t bits, result;
  unsigned mask, votes;
  // Of its asynchronous copies: how many groups it has committed, and how many copies have not arrived.
  unsigned groups;
  std::uint8_t copies;
  std::uint8_t source;  // the lane of its warp that has what it gets
  State state;
};
static_assert(sizeof(Lane) == 64);

/// The asynchronous copies of a lane, in order, and the group of each copy.
struct Copies {
  static constexpr unsigned most = 128;
  struct Copy {
    void* to;
    const void* from;  // null: zeros
    unsigned bytes, group;
  } copy[most];
};

bool same(const Where& a, const Where& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

/// Runs blocks on one thread. Lanes touch only its plain arrays: containers could be shared with code that ThreadSanitizer
/// watches.
class Runner {
 public:
  Runner() = default;
  Runner(const Runner&) = delete;
  ~Runner();

  void run(const Launch& launch, std::minstd_rand& dice);
  std::byte* shared_memory() const { return shared_; }
  const std::type_info& kernel() const { return *launch_->kernel; }

  // Called by lanes.
  void block_barrier(Where where);
  const Lane& warp_barrier(const char* name, unsigned mask, std::uint64_t bits, unsigned source, Where where,
                           Together together = nullptr);
  [[noreturn]] void refuse(const std::string& text) const { fault(current_, text); }
  void begin_copy(void* to, const void* from, unsigned bytes);
  void commit_copies() { ++lanes_[current_].groups; }
  void finish_copies(unsigned groups);

 private:
  void run_block();
  /// Leaves `from` for the thread if no lane is ready, or else for the next lane. A lane that has not begun does so on `spare`,
  /// whose lane has returned, if that is given.
  void go_on(void*& left_at, Stack& from, Fiber* spare = nullptr);
  void enter(void*& left_at, Stack& from, void* at, Stack& to);
  void arrive(const Stack& here);
  void pass_on(unsigned first, unsigned mask, Together together);
  static void fiber_main();
  void make_ready(unsigned lane) {
    lanes_[lane].state = State::ready;
    ready_[(first_ready_ + ready_count_++) % most_lanes] = lane;
  }
  /// `count` lanes from `first` on, in an order that differs from time to time.
  void make_all_ready(unsigned first, unsigned count, unsigned mask);
  unsigned random() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>(random_ >> 33);
  }
  [[noreturn]] void stuck() const;
  [[noreturn]] void fault(unsigned lane, const std::string& text) const;
  std::string describe(unsigned lane) const;
  Fiber* take_fiber();

  const Launch* launch_ = nullptr;
  std::byte* shared_ = nullptr;
  Lane lanes_[most_lanes];
  Copies copies_[most_lanes];
  unsigned ready_[most_lanes];
  unsigned first_ready_ = 0, ready_count_ = 0, at_block_barrier_ = 0, returned_ = 0, current_ = 0;
  std::uint64_t random_ = 0;
  unsigned waiting_[most_lanes / warp_lanes];  // a bit for each lane at a barrier of its warp

  bool in_turn_ = false;

  Fiber *fibers_[most_lanes], *free_[most_lanes];
  unsigned fiber_count_ = 0, free_count_ = 0;
  GuardedPages shared_pages_;

  Stack thread_;
  void* thread_left_at_ = nullptr;
  bool from_thread_ = false;  // whether the fiber that begins or goes on now does so from the thread
};

/// The thread's own. It is made when the thread runs its first block.
constinit FSDP_CUDA_DOUBLE_LANE Runner* runner = nullptr;
struct RunnerOwner {
  ~RunnerOwner() { delete runner; }
};

Runner::~Runner() {
  for (unsigned i = 0; i < fiber_count_; ++i) {
    Fiber* const fiber = fibers_[i];
    if (__tsan_destroy_fiber && fiber->stack.tsan) __tsan_destroy_fiber(fiber->stack.tsan);
    unmap(fiber->pages);
    delete fiber;
  }
  if (shared_pages_.mapping) unmap(shared_pages_);
}

Fiber* Runner::take_fiber() {
  if (free_count_ > 0) return free_[--free_count_];
  auto* fiber = new Fiber;
  fiber->pages = map_guarded(stack_bytes);
  // As fsdp_cuda_double_switch() leaves a stack: six registers, where to go on, and there the address of no caller. A function
  // finds the stack 8 bytes off a multiple of 16.
  // Stacks begin at different lines of a page: else all lanes' would share a few lines of the first-level cache.
  auto** top = reinterpret_cast<void**>(fiber->pages.end - fiber_count_ % 64 * 64) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&Runner::fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber->left_at = top;
  fiber->stack = {.bottom = fiber->pages.begin, .bytes = stack_bytes};
  if (watches_lanes()) fiber->stack.tsan = __tsan_create_fiber(0);
  fibers_[fiber_count_++] = fiber;
  return fiber;
}

void Runner::run(const Launch& launch, std::minstd_rand& dice) {
  launch_ = &launch;
  if (launch.shared > 0) {
    if (!shared_pages_.mapping) shared_pages_ = map_guarded(std::size_t{227} * 1024);  // the most of any device
    shared_ = shared_pages_.end - (launch.shared + 127) / 128 * 128;
  }
  if (watches_lanes()) thread_.tsan = __tsan_get_current_fiber();
  random_ = dice();
  gridDim = {launch.blocks, 1, 1};
  blockDim = {launch.threads, 1, 1};
  std::vector<unsigned> order(launch.blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), dice);
  for (const unsigned block : order) {
    blockIdx = {block, 0, 0};
    run_block();
  }
  shared_ = nullptr;
}

void Runner::make_all_ready(unsigned first, unsigned count, unsigned mask) {
  unsigned at = random() % count, step = random() % count | 1;
  while (std::gcd(step, count) != 1) step += 2;
  for (unsigned i = 0; i < count; ++i, at = (at + step) % count)
    if (mask >> (at % warp_lanes) & 1u) make_ready(first + at);
}

/// In some blocks the lane runs next that has been ready for the longest time, so that warps take turns; in others the one that
/// has become ready last, so that one warp runs as far as it can.
void Runner::run_block() {
  if (shared_) std::memset(shared_, 0xff, launch_->shared);
  at_block_barrier_ = returned_ = ready_count_ = 0;
  std::fill_n(waiting_, most_lanes / warp_lanes, 0u);
  std::fill_n(lanes_, launch_->threads, Lane{});
  make_all_ready(0, launch_->threads, ~0u);
  in_turn_ = random() % 2 == 0;
  if (watches_lanes())
    __tsan_release(&launch_);  // what lanes acquire when they begin; they release another, that of their return
  from_thread_ = true;
  go_on(thread_left_at_, thread_);
  if (returned_ != launch_->threads) stuck();
  if (watches_lanes())  // to ThreadSanitizer, what the same fiber does is in order: each lane of a block has its own
    for (unsigned lane = 0; lane < launch_->threads; ++lane) free_[free_count_++] = lanes_[lane].fiber;
  if (watches_lanes()) __tsan_acquire(&returned_);
}

void Runner::go_on(void*& left_at, Stack& from, Fiber* spare) {
  if (ready_count_ == 0) {
    if (spare) free_[free_count_++] = spare;
    return enter(left_at, from, thread_left_at_, thread_);
  }
  --ready_count_;
  const unsigned index = ready_[(in_turn_ ? first_ready_ : first_ready_ + ready_count_) % most_lanes];
  if (in_turn_) first_ready_ = (first_ready_ + 1) % most_lanes;
  current_ = index;
  threadIdx = {index, 0, 0};
  Lane& lane = lanes_[index];
  if (&lane.left_at == &left_at) return;
  void* at = lane.left_at;
  if (!lane.fiber) {
    lane.fiber = spare ? spare : take_fiber();
    if (spare) return;
    at = lane.fiber->left_at;
  } else if (spare) {
    free_[free_count_++] = spare;
  }
  enter(left_at, from, at, lane.fiber->stack);
}

inline void Runner::enter(void*& left_at, Stack& from, void* at, Stack& to) {
  constexpr unsigned no_order =
      1;  // the switch itself orders nothing: what one lane did is not done before what the next one does
  if (watches_lanes()) __tsan_switch_to_fiber(to.tsan, no_order);
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.bytes);
  fsdp_cuda_double_switch(&left_at, at);
  arrive(from);
}

inline void Runner::arrive(const Stack& here) {
  if (!__sanitizer_finish_switch_fiber) return;
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(here.fake_stack, &bottom, &bytes);
  if (from_thread_) thread_.bottom = bottom, thread_.bytes = bytes, from_thread_ = false;
}

void Runner::fiber_main() {
  Runner& r = *runner;
  Fiber& own = *r.lanes_[r.current_].fiber;
  r.arrive(Stack{});
  for (;;) {
    if (watches_lanes()) __tsan_acquire(&r.launch_);
    r.launch_->lane();
    if (watches_lanes()) __tsan_release(&r.returned_);
    r.lanes_[r.current_].state = State::returned;
    ++r.returned_;
    r.go_on(own.left_at, own.stack, watches_lanes() ? nullptr : &own);
  }
}

void Runner::block_barrier(Where where) {
  Lane& lane = lanes_[current_];
  lane.state = State::at_block_barrier;
  lane.name = "__syncthreads";
  lane.where = where;
  if (watches_lanes()) __tsan_release(&at_block_barrier_);
  if (++at_block_barrier_ == launch_->threads) {
    for (unsigned other = 0; other < launch_->threads; ++other)
      if (!same(lanes_[other].where, where)) stuck();
    at_block_barrier_ = 0;
    make_all_ready(0, launch_->threads, ~0u);
  }
  go_on(lane.left_at, lane.fiber->stack);
  if (watches_lanes()) __tsan_acquire(&at_block_barrier_);
}

const Lane& Runner::warp_barrier(const char* name, unsigned mask, std::uint64_t bits, unsigned source, Where where,
                                 Together together) {
  const unsigned warp = current_ / warp_lanes, first = warp * warp_lanes;
  Lane& lane = lanes_[current_];
  lane.state = State::at_warp_barrier;
  lane.name = name;
  lane.where = where;
  lane.mask = mask;
  lane.bits = bits;
  lane.source = static_cast<std::uint8_t>(source);
  if ((mask >> (current_ - first) & 1u) == 0) fault(current_, "its mask does not name the lane itself");
  if ((mask >> source & 1u) == 0)
    fault(current_, "it asks for the value of lane " + std::to_string(first + source) + ", which its mask does not name");
  if (watches_lanes()) __tsan_release(&waiting_[warp]);
  waiting_[warp] |= 1u << (current_ - first);

  bool all = (waiting_[warp] & mask) == mask;
  for (unsigned i = 0; all && i < warp_lanes; ++i) {
    const Lane& other = lanes_[first + i];
    if (mask >> i & 1u) all = other.mask == mask && same(other.where, where);
  }
  if (all) pass_on(first, mask, together);
  go_on(lane.left_at, lane.fiber->stack);
  if (watches_lanes()) __tsan_acquire(&waiting_[warp]);
  return lane;
}

/// All lanes of `mask` have arrived: each gets its result, and continues.
[[gnu::noinline]] void Runner::pass_on(unsigned first, unsigned mask, Together together) {
  if (together) {
    void* brought[warp_lanes];
    for (unsigned i = 0; i < warp_lanes; ++i) brought[i] = reinterpret_cast<void*>(lanes_[first + i].bits);
    together(brought);
  }
  unsigned votes = 0;
  for (unsigned i = 0; i < warp_lanes; ++i)
    if (mask >> i & 1u && lanes_[first + i].bits != 0) votes |= 1u << i;
  for (unsigned i = 0; i < warp_lanes; ++i)
    if (mask >> i & 1u) {
      Lane& other = lanes_[first + i];
      other.result = lanes_[first + other.source].bits;
      other.votes = votes;
    }
  make_all_ready(first, warp_lanes, mask);
  waiting_[first / warp_lanes] &= ~mask;
}

void Runner::begin_copy(void* to, const void* from, unsigned bytes) {
  Lane& lane = lanes_[current_];
  const auto whole = [bytes](const void* address) { return reinterpret_cast<std::uintptr_t>(address) % bytes == 0; };
  if (!whole(to) || (from && !whole(from))) fault(current_, "it copies to or from an address that is no multiple of its bytes");
  if (lane.copies == Copies::most) fault(current_, "it has begun more copies than the double has room for");
  copies_[current_].copy[lane.copies++] = {to, from, bytes, lane.groups};
  std::memset(to, 0xff, bytes);
}

void Runner::finish_copies(unsigned groups) {
  Lane& lane = lanes_[current_];
  Copies::Copy* const own = copies_[current_].copy;
  unsigned done = 0;
  for (; done < lane.copies && own[done].group + groups < lane.groups; ++done) {
    const Copies::Copy& copy = own[done];
    if (copy.from)
      std::memcpy(copy.to, copy.from, copy.bytes);
    else
      std::memset(copy.to, 0, copy.bytes);
  }
  std::copy(own + done, own + lane.copies, own);
  lane.copies -= done;
}

std::string Runner::describe(unsigned index) const {
  if (index >= launch_->threads) return "is one that the block does not have";
  const Lane& lane = lanes_[index];
  if (lane.state == State::returned) return "has returned";
  if (lane.state == State::ready) return "is running";
  std::string text =
      std::string("waits in ") + lane.name + " at " + lane.where.file_name() + ":" + std::to_string(lane.where.line());
  if (lane.state == State::at_warp_barrier) {
    char mask[16];
    std::snprintf(mask, sizeof mask, "%08x", lane.mask);
    text += std::string(" with mask ") + mask;
  }
  return text;
}

void Runner::fault(unsigned lane, const std::string& text) const {
  int status = 0;
  char* name = abi::__cxa_demangle(launch_->kernel->name(), nullptr, nullptr, &status);
  die("kernel " + std::string(status == 0 ? name : launch_->kernel->name()) + ", block " + std::to_string(blockIdx.x) +
      ": lane " + std::to_string(lane) + " " + describe(lane) + ", and " + text);
}

void Runner::stuck() const {
  for (unsigned lane = 0; lane < launch_->threads; ++lane) {
    const Lane& waiting = lanes_[lane];
    if (waiting.state == State::at_block_barrier) {
      for (unsigned other = 0; other < launch_->threads; ++other)
        if (lanes_[other].state != State::at_block_barrier || !same(lanes_[other].where, waiting.where))
          fault(lane, "lane " + std::to_string(other) + " " + describe(other));
    } else if (waiting.state == State::at_warp_barrier) {
      const unsigned first = lane / warp_lanes * warp_lanes;
      for (unsigned i = 0; i < warp_lanes; ++i) {
        const Lane& other = lanes_[first + i];
        if ((waiting.mask >> i & 1u) == 0) continue;
        if (first + i >= launch_->threads || other.state != State::at_warp_barrier || other.mask != waiting.mask ||
            !same(other.where, waiting.where))
          fault(lane, "lane " + std::to_string(first + i) + " " + describe(first + i));
      }
    }
  }
  die("a block waits, and no lane of it does (this is a fault of the double)");
}

}  // namespace

void run(const Launch& launch, std::minstd_rand& dice) {
  static thread_local const RunnerOwner owner;
  if (!runner) runner = new Runner;
  runner->run(launch, dice);
}

std::byte* dynamic_shared() { return runner->shared_memory(); }

std::uint64_t exchange(const char* name, unsigned mask, std::uint64_t bits, unsigned source, Where where) {
  return runner->warp_barrier(name, mask, bits, source, where).result;
}

unsigned vote(const char* name, unsigned mask, bool value, Where where) {
  return runner->warp_barrier(name, mask, value, lane_of_warp(), where).votes;
}

void meet(const char* name, void* mine, Together together, Where where) {
  runner->warp_barrier(name, ~0u, reinterpret_cast<std::uint64_t>(mine), lane_of_warp(), where, together);
}

void refuse(const std::string& text) { runner->refuse(text); }

void copy_async(void* to, const void* from, unsigned bytes, bool there) {
  runner->begin_copy(to, there ? from : nullptr, bytes);
}
void commit_copies() { runner->commit_copies(); }
void wait_copies(unsigned groups) {
  if (!is_left_out(__builtin_return_address(0), "wait_copies", runner->kernel())) runner->finish_copies(groups);
}

}  // namespace fsdp::cuda_double

void __syncthreads(std::source_location where) {
  fsdp::cuda_double::Runner& runner = *fsdp::cuda_double::runner;
  if (!fsdp::cuda_double::is_left_out(__builtin_return_address(0), "__syncthreads", runner.kernel()))
    runner.block_barrier(where);
}

void __syncwarp(unsigned mask, std::source_location where) {
  fsdp::cuda_double::Runner& runner = *fsdp::cuda_double::runner;
  if (!fsdp::cuda_double::is_left_out(__builtin_return_address(0), "__syncwarp", runner.kernel()))
    runner.warp_barrier("__syncwarp", mask, 0, fsdp::cuda_double::lane_of_warp(), where);
}
