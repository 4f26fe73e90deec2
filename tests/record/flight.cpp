// The flight record of one process: the contents of its file after any end of the process.
#include <boost/test/unit_test.hpp>

#include <csignal>
#include <cstring>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "record/flight.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

const char* const name = "rank-00001-of-00003.flight";

/// Records `done` finished operations and an unfinished one in the lane of the compute stream.
void note(FlightLanes& lanes, int done) {
  const FlightEntry entry = flight_entry("forward block 3");
  for (int i = 1; i <= done + 1; ++i) {
    begin_operation(lanes[0], entry, 7, 1000 * i);
    if (i <= done) end_operation(lanes[0], 1000 * i + 10);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_killed_process_leaves_its_last_entries) {
  for (const FlightMemory memory : {FlightMemory::automatic, FlightMemory::mapped, FlightMemory::copied}) {
    const TemporaryFolder folder;
    const pid_t child = fork();
    if (child == 0) {
      FlightFile file(folder / "flight", 1, 3, DeviceKind::cpu, memory);
      note(file.lanes(), 100);
      if (!file.is_mapped()) usleep(2'500'000);  // the file is updated once a second
      raise(SIGKILL);
    }
    int status = 0;
    BOOST_TEST_REQUIRE(waitpid(child, &status, 0) == child);
    BOOST_TEST(WTERMSIG(status) == SIGKILL);
    const FlightRecord record = read_flight_record(folder / "flight" / name);
    BOOST_TEST(record.rank == 1);
    BOOST_TEST(record.size == 3);
    BOOST_TEST(record.process == child);
    BOOST_CHECK(record.end == FlightEnd::none);
    BOOST_TEST(record.copied == (memory == FlightMemory::copied));
    const FlightRecord::Lane& lane = record.lanes.at(0);
    BOOST_TEST(lane.name == "compute");
    BOOST_TEST(lane.begun == 101u);
    BOOST_TEST(lane.done == 100u);
    BOOST_TEST_REQUIRE(lane.entries.size() == FlightLane::size);
    BOOST_TEST(lane.entries.front().number == 38u);
    BOOST_TEST(lane.entries.front().end_ns == 38010);
    const FlightEntry& last = lane.entries.back();
    BOOST_TEST(last.number == 101u);
    BOOST_TEST(last.update == 7u);
    BOOST_TEST(last.begin_ns == 101000);
    BOOST_TEST(last.end_ns == 0);
    BOOST_TEST(std::string(last.what.data()) == "forward block 3");
    BOOST_TEST(record.unreadable == 0u);
  }
}

BOOST_AUTO_TEST_CASE(a_truncated_file_ends_no_process) {
  for (const off_t bytes : {0, 4096}) {
    const TemporaryFolder folder;
    const pid_t child = fork();
    if (child == 0) {
      FlightFile file(folder / "flight", 1, 3, DeviceKind::cpu, FlightMemory::mapped);
      note(file.lanes(), 10);
      bool ok = file.is_mapped() && truncate((folder / "flight" / name).c_str(), bytes) == 0;
      note(file.lanes(), 200);
      file.ends(FlightEnd::failed, "as planned");
      _exit(ok ? 0 : 1);
    }
    int status = 0;
    BOOST_TEST_REQUIRE(waitpid(child, &status, 0) == child);
    BOOST_TEST(status == 0);
    CHECK_CONTAINS(message_of([&] { read_flight_record(folder / "flight" / name); }), "is not a flight record");
  }
  // Any other access beyond the end of a mapped file still ends the process.
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGBUS, SIG_DFL);  // instead of Boost.Test's handler
    const TemporaryFolder folder;
    const FlightFile file(folder / "flight", 1, 3, DeviceKind::cpu, FlightMemory::mapped);
    raise(SIGBUS);
    raise(SIGBUS);
    _exit(0);
  }
  int status = 0;
  BOOST_TEST_REQUIRE(waitpid(child, &status, 0) == child);
  BOOST_TEST((WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS));
}

BOOST_AUTO_TEST_CASE(the_host_notes_what_it_does_between_operations) {
  const TemporaryFolder folder;
  FlightFile file(folder / "flight", 1, 3, DeviceKind::cpu);
  { const FlightNote save(file.lanes(), "save", 5); }
  try {
    const FlightNote agree(file.lanes(), "agree", 5, FlightNote::Kind::exchange);
    throw std::runtime_error("no");
  } catch (const std::runtime_error&) {
    file.ends(FlightEnd::waited, "rank 2 did not come", 2);
  }
  const FlightRecord record = read_flight_record(folder / "flight" / name);
  const FlightRecord::Lane& host = record.lanes.at(host_lane);
  BOOST_TEST_REQUIRE(host.entries.size() == 2u);
  BOOST_TEST(host.done == 1u);
  BOOST_TEST(host.entries[0].end_ns >= host.entries[0].begin_ns);
  BOOST_TEST(host.entries[1].exchanges == 1);
  BOOST_CHECK(record.end == FlightEnd::waited);
  BOOST_TEST(record.missed == 2);
  BOOST_TEST(record.message == "rank 2 did not come");
}

BOOST_AUTO_TEST_CASE(a_good_end_removes_the_file_and_a_name_that_is_taken_is_a_problem) {
  const TemporaryFolder folder;
  FlightFile file(folder / "flight", 1, 3, DeviceKind::cpu);
  BOOST_TEST(file.problem().empty());
  FlightFile second(folder / "flight", 1, 3, DeviceKind::cpu);
  BOOST_TEST(second.problem().ends_with(std::string(name) + ": File exists"));
  note(second.lanes(), 3);  // is lost with the process
  second.remove();
  BOOST_TEST(std::filesystem::exists(folder / "flight" / name));
  std::filesystem::rename(folder / "flight", folder / "moved");
  std::filesystem::create_directory(folder / "flight");
  write_file(folder / "flight" / name, "another run's");
  file.remove();
  BOOST_TEST(std::filesystem::exists(folder / "flight" / name));
  std::filesystem::remove_all(folder / "flight");
  std::filesystem::rename(folder / "moved", folder / "flight");
  file.remove();
  remove_flight_folder(folder / "");
  BOOST_TEST(!std::filesystem::exists(folder / "flight"));
}

BOOST_AUTO_TEST_CASE(records_are_put_aside_in_the_place_of_older_ones) {
  const TemporaryFolder folder;
  const auto saves = folder / "";
  BOOST_TEST(!put_flight_records_aside(saves));
  for (const int size : {2, 3}) {
    { const FlightFile file(folder / "flight", 1, size, DeviceKind::cpu); }
    BOOST_TEST(put_flight_records_aside(saves));
    BOOST_TEST(!std::filesystem::exists(folder / "flight"));
    write_file(folder / "flight.old/notes", "mine");
    BOOST_TEST_REQUIRE(flight_files(folder / "flight.old").size() == 1u);
    BOOST_TEST(read_flight_record(flight_files(folder / "flight.old")[0]).size == size);
  }
  BOOST_TEST(read_file(folder / "flight.old/notes") == "mine");
  // Links are not followed.
  std::filesystem::rename(folder / "flight.old", folder / "home");
  std::filesystem::create_directory_symlink("home", folder / "flight.old");
  { const FlightFile file(folder / "flight", 1, 2, DeviceKind::cpu); }
  CHECK_CONTAINS(message_of([&] { put_flight_records_aside(saves); }), "flight.old is in the way");
  std::filesystem::remove_all(folder / "flight");
  std::filesystem::create_directory_symlink("home", folder / "flight");
  CHECK_CONTAINS(message_of([&] { put_flight_records_aside(saves); }), "flight is in the way");
  BOOST_TEST(flight_files(folder / "home").size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_is_damaged_is_refused_or_left_out) {
  const TemporaryFolder folder;
  {
    FlightFile file(folder / "flight", 1, 3, DeviceKind::cpu);
    note(file.lanes(), 9);
  }
  const std::string whole = read_file(folder / "flight" / name);
  const auto read = [&](const std::string& contents) {
    write_file(folder / "damaged", contents);
    return read_flight_record(folder / "damaged");
  };
  CHECK_CONTAINS(message_of([&] { read(whole.substr(0, 5000)); }), "is not a flight record (it has 5000 bytes");
  CHECK_CONTAINS(message_of([&] { read("x" + whole.substr(1)); }), "it does not begin like one");
  std::string rank = whole;
  rank[16] = 'x';
  CHECK_CONTAINS(message_of([&] { read(rank); }), "impossible");
  std::string entry = whole;
  entry[entry.find("forward block 3", entry.find("forward block 3") + 1)] = '\0';  // removes the name of the second entry
  BOOST_TEST(read(entry).unreadable == 1u);
  BOOST_TEST(read(entry).lanes[0].entries.size() == 9u);
  // For any contents, reading gives an error or entries that can be printed.
  for (std::size_t at = 0; at < whole.size(); at += 97) {
    std::string any = whole;
    any[at] = static_cast<char>(any[at] ^ 0x5a);
    try {
      for (const auto& lane : read(any).lanes)
        for (const FlightEntry& one : lane.entries) BOOST_TEST(std::strlen(one.what.data()) < one.what.size());
    } catch (const UserError&) {
    }
  }
}
