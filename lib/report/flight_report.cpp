#include "report/flight_report.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/clean_text.hpp"
#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace fs = std::filesystem;

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    text += format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (j > i) text += format("-{}", ranks[j]);
    i = j + 1;
  }
  return text;
}

FlightFolder read_flight_folder(const fs::path& path) {
  FlightFolder folder;
  for (const fs::path& place : {path, path / "flight", path / "flight.old"}) {
    folder.path = place;
    if (!flight_files(place).empty()) break;
  }
  const std::vector<fs::path> files = flight_files(folder.path);
  if (files.empty())
    throw UserError(
        format("{} has no flight records (a run that ends normally removes them); give the save folder of a run that did not "
               "end normally",
               path.string()));
  for (const fs::path& file : files) {
    try {
      folder.records.push_back(read_flight_record(file));
    } catch (const UserError& error) {
      folder.problems.emplace_back(error.what());
    } catch (const CallError& error) {
      folder.problems.emplace_back(error.what());
    }
  }
  if (folder.records.empty())
    throw RunError(format("none of the {} flight records in {} can be read (the first one: {}); there is nothing to compare",
                          files.size(), folder.path.string(), folder.problems.front()));
  // If the folder has records of jobs of several sizes, only the size with the most records is used.
  std::map<int, int> sizes;
  for (const FlightRecord& record : folder.records) ++sizes[record.size];
  const int size =
      std::max_element(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
  std::erase_if(folder.records, [&](const FlightRecord& record) {
    if (record.size == size) return false;
    folder.problems.push_back(
        format("the record of rank {} is from a job of {} ranks, not of {}, and is ignored", record.rank, record.size, size));
    return true;
  });
  const auto by_rank = [](const FlightRecord& a, const FlightRecord& b) { return a.rank < b.rank; };
  std::stable_sort(folder.records.begin(), folder.records.end(), by_rank);
  const auto same_rank = [](const FlightRecord& a, const FlightRecord& b) { return a.rank == b.rank; };
  const auto copies = std::unique(folder.records.begin(), folder.records.end(), same_rank);
  if (const auto n = folder.records.end() - copies; n > 0)
    folder.problems.push_back(format("{} of the same rank as another record {} ignored",
                                     n == 1 ? "a record" : format("{} records", n), n == 1 ? "is" : "are"));
  folder.records.erase(copies, folder.records.end());
  for (int rank = 0, at = 0; rank < size; ++rank) {
    if (at < static_cast<int>(folder.records.size()) && folder.records[static_cast<std::size_t>(at)].rank == rank)
      ++at;
    else
      folder.missing.push_back(rank);
  }
  for (const FlightRecord& record : folder.records)
    if (record.unreadable > 0)
      folder.problems.push_back(
          format("the record of rank {} has {} damaged entries, which are ignored", record.rank, record.unreadable));
  return folder;
}

namespace {

/// Returns the number of entries that a rank has begun. All ranks begin the same entries in the same order on each lane, so the
/// rank that the others wait for has begun the fewest.
std::uint64_t begun(const FlightRecord& record) {
  std::uint64_t sum = 0;
  for (const FlightRecord::Lane& lane : record.lanes) sum += lane.begun;
  return sum;
}

/// The operation in which a rank was: the last entry that is not done, or else the last entry that the rank has begun.
struct Last {
  const FlightEntry* entry = nullptr;  // null if unknown
  bool open = false;                   // the entry is not done
  std::uint64_t open_entries = 0;      // the number of entries in its lane that are not done
};
Last last_of(const FlightRecord& record) {
  Last last;
  for (const FlightRecord::Lane& lane : record.lanes) {
    if (lane.entries.empty()) continue;
    const bool open = lane.done < lane.begun;
    // A GPU has a queue of entries that are not done, and was working on the first of them.
    const auto first_open = std::find_if(lane.entries.begin(), lane.entries.end(),
                                         [&](const FlightEntry& entry) { return entry.number > lane.done; });
    const FlightEntry& entry = open && first_open != lane.entries.end() ? *first_open : lane.entries.back();
    if (!last.entry || std::pair(open, entry.begin_ns) > std::pair(last.open, last.entry->begin_ns))
      last = {&entry, open, lane.begun - lane.done};
  }
  return last;
}

std::string name_of(const FlightEntry& entry) { return excerpt(entry.what.data()); }

std::string describe(const FlightEntry& entry) {
  std::string text = name_of(entry);
  if (entry.bytes > 0) text += format(" ({})", format_bytes(static_cast<double>(entry.bytes)));
  if (entry.update > 0) text += format(" of update {}", entry.update);
  if (entry.micro_batch > 0) text += format(", micro-batch {}", entry.micro_batch);
  return text;
}

/// Returns "2026-03-01 14:03:07.250".
std::string time_text(const FlightRecord& record, std::int64_t ns) {
  const std::int64_t wall = ns + record.clock_ns;
  const std::time_t seconds = wall / 1'000'000'000;
  std::tm parts{};
  if (!::localtime_r(&seconds, &parts)) return "?";
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return format("{}.{:03}", text, wall / 1'000'000 % 1000);
}

std::string state_of(const FlightRecord& record, const Last& last) {
  if (!last.entry) return "nothing begun";
  if (last.open && record.queued && last.open_entries > 1) return format("{} entries queued since", last.open_entries);
  return last.open ? (last.entry->exchanges ? "waits or moves data" : "not done") : "done";
}

std::string rank_text(const FlightRecord& record) { return format("rank {} on {}", record.rank, excerpt(record.host, 64)); }

struct DifferentCall {
  const FlightRecord *one, *other;
  const FlightEntry *of_one, *of_other;
  std::string lane;
};
/// Finds the earliest entry that differs between two ranks although its lane and its number are the same.
std::optional<DifferentCall> find_different_call(const std::vector<FlightRecord>& records) {
  std::optional<DifferentCall> first;
  for (std::size_t l = 0; l < records.front().lanes.size(); ++l) {
    std::map<std::uint64_t, std::pair<const FlightRecord*, const FlightEntry*>> seen;
    for (const FlightRecord& record : records)
      for (const FlightEntry& entry : record.lanes[l].entries) {
        const auto [at, is_new] = seen.try_emplace(entry.number, &record, &entry);
        const FlightEntry& other = *at->second.second;
        if (is_new || (entry.what == other.what && entry.update == other.update && entry.bytes == other.bytes &&
                       entry.micro_batch == other.micro_batch))
          continue;
        if (!first || entry.begin_ns + record.clock_ns < first->of_other->begin_ns + first->other->clock_ns)
          first = DifferentCall{at->second.first, &record, &other, &entry, record.lanes[l].name};
      }
  }
  return first;
}

/// The ranks to look at, and the reason.
struct Diagnosis {
  std::vector<int> ranks;
  std::string text, cause;
};

double seconds_of(const FlightEntry& entry) { return 1e-9 * static_cast<double>(entry.end_ns - entry.begin_ns); }

/// Returns the longest completed entry without communication on a rank, if it took a second or more; else null. A process that
/// was stopped (SIGSTOP) continues for a moment before it is killed, so that the entry in which it was stopped is completed.
const FlightEntry* longest_alone(const FlightRecord& record) {
  const FlightEntry* longest = nullptr;
  for (const FlightRecord::Lane& lane : record.lanes)
    for (const FlightEntry& entry : lane.entries)
      if (entry.exchanges == 0 && entry.end_ns > 0 && seconds_of(entry) >= (longest ? seconds_of(*longest) : 1))
        longest = &entry;
  return longest;
}

std::string of_a_silent_rank(const FlightRecord& record) {
  return format(
      "the rank was killed (out of memory: dmesg, sacct -o State,MaxRSS), stopped, or hangs (a GPU that has failed: "
      "nvidia-smi, dmesg), or its node is slow or gone. If the whole job was ended from outside at this moment, or still runs, "
      "nothing is wrong with this rank. Check {}, and leave out that node if it is at fault; the same command resumes from the "
      "last save",
      excerpt(record.host, 64));
}

Diagnosis judge(const FlightFolder& folder) {
  const auto& records = folder.records;
  const auto& [low, high] =
      std::minmax_element(records.begin(), records.end(), [](const auto& a, const auto& b) { return begun(a) < begun(b); });
  const std::uint64_t least = begun(*low), most = begun(*high);
  Diagnosis verdict;
  const auto failed = [](const FlightRecord& record) { return record.end == FlightEnd::failed; };
  if (const auto first = std::find_if(records.begin(), records.end(), failed); first != records.end()) {
    const Last last = last_of(*first);
    for (const FlightRecord& record : records)
      if (failed(record)) verdict.ranks.push_back(record.rank);
    return {verdict.ranks,
            format("{} failed{}: {}", rank_text(*first), last.entry ? " in " + describe(*last.entry) : "",
                   excerpt(first->message, 1000)),
            "fix this error first; the other ranks ended because of it"};
  }
  if (const auto mismatch = find_different_call(records)) {
    return {{mismatch->one->rank, mismatch->other->rank},
            format("the ranks do not do the same: entry {} of lane {} is {} on {}, and {} on {}", mismatch->of_one->number,
                   mismatch->lane, describe(*mismatch->of_one), rank_text(*mismatch->one), describe(*mismatch->of_other),
                   rank_text(*mismatch->other)),
            "all ranks must run the same program with the same options and files; if they did, this is a bug: report it with "
            "the records"};
  }
  if (!folder.missing.empty()) {
    const bool is_one = folder.missing.size() == 1;
    return {folder.missing,
            format("rank{} {} left no record, so that the others cannot be compared with {}", is_one ? "" : "s",
                   ranks_text(folder.missing), is_one ? "it" : "them"),
            "a node that dies loses data that is not yet on disk: check those nodes first, or, if the record is damaged, what "
            "the launcher and the system's log say about that rank"};
  }
  std::vector<const FlightRecord*> behind;
  for (const FlightRecord& record : records)
    if (begun(record) == least) behind.push_back(&record);
  if (least == most && records.size() > 1) {
    // All ranks were in the same operation. A rank that timed out while it waited for another rank has recorded that rank.
    const auto knows = [](const FlightRecord& record) { return record.missed >= 0; };
    const auto one = std::find_if(records.begin(), records.end(), knows);
    const Last last = last_of(records.front());
    const std::string where = last.entry ? describe(*last.entry) : "the start";
    if (one != records.end()) {
      const FlightRecord& missed = records[static_cast<std::size_t>(one->missed)];
      verdict.ranks = {one->missed};
      verdict.text = format("{} did not continue, according to the ranks that waited for it; all had reached {}",
                            rank_text(missed), where);
      if (const FlightEntry* longest = longest_alone(missed))
        verdict.text += format("; before that it spent {} in {}", format_duration(seconds_of(*longest)), describe(*longest));
      verdict.cause = of_a_silent_rank(missed);
      return verdict;
    }
    for (const FlightRecord* record : behind) verdict.ranks.push_back(record->rank);
    verdict.text = format("no rank is behind another: all had reached {}", where);
    verdict.cause =
        last.entry && last.open && last.entry->exchanges
            ? "one of them ended there, or all waited for the network: see what the launcher and the system's log "
              "say; if it is the network, try --comm mpi, or raise --collective-timeout"
            : "the job was ended from outside (scancel, the time limit, kill), or a rank died at this point: see what "
              "the launcher and the system's log say";
    return verdict;
  }
  const FlightRecord& first = *behind.front();
  const Last last = last_of(first);
  for (const FlightRecord* record : behind) verdict.ranks.push_back(record->rank);
  const bool alone = behind.size() == 1;
  verdict.text =
      format("{} {} behind: ",
             alone ? rank_text(first) : format("ranks {} (the first is {})", ranks_text(verdict.ranks), rank_text(first)),
             alone ? "is" : "are");
  if (!last.entry)
    verdict.text += "nothing was begun";
  else if (last.open)
    verdict.text += format("at {}, since {}", describe(*last.entry), time_text(first, last.entry->begin_ns));
  else
    verdict.text +=
        format("the last was {}, begun {}, which is done", describe(*last.entry), time_text(first, last.entry->begin_ns));
  const Last ahead = last_of(*high);
  if (least != most && ahead.entry)
    verdict.text += format("; {} was {} further, at {}", rank_text(*high),
                           most - least == 1 ? "one operation" : format("{} operations", most - least), describe(*ahead.entry));
  if (last.entry && last.open && name_of(*last.entry) == "save")
    verdict.cause =
        "it was writing its part of a checkpoint: look at the file system and its quota; or " + of_a_silent_rank(first);
  else if (last.entry && last.open && name_of(*last.entry) == "read the batch")
    verdict.cause = "it was reading the token file: look at the file system that has it; or " + of_a_silent_rank(first);
  else
    verdict.cause = of_a_silent_rank(first);
  return verdict;
}

}  // namespace

std::string describe_flight(const FlightFolder& folder) {
  const auto& records = folder.records;
  std::string out = format("{} of {} flight records in {}, written by fsdp {}\n", records.size(), records.front().size,
                           one_line(folder.path.string()), excerpt(records.front().version, 64));
  for (const std::string& problem : folder.problems) out += format("warning: {}\n", one_line(problem));
  if (!folder.missing.empty())
    out += format("no record of rank{} {}: lost with its node before it reached the disk, or never written\n",
                  folder.missing.size() == 1 ? "" : "s", ranks_text(folder.missing));
  // Ranks in the same state share a row.
  std::map<std::pair<std::uint64_t, std::string>, std::vector<const FlightRecord*>> at;
  for (const FlightRecord& record : records) {
    const Last last = last_of(record);
    at[{begun(record),
        format("{}|{}|{}", last.entry ? describe(*last.entry) : "-", state_of(record, last), static_cast<int>(record.end))}]
        .push_back(&record);
  }
  std::vector<std::vector<std::string>> rows = {{"ranks", "begun", "last", "since", "", "ended"}};
  for (const auto& [key, group] : at) {
    std::vector<int> ranks;
    for (const FlightRecord* record : group) ranks.push_back(record->rank);
    const FlightRecord& first = *group.front();
    const Last last = last_of(first);
    rows.push_back({ranks_text(ranks), format("{}", key.first), last.entry ? describe(*last.entry) : "",
                    last.entry ? time_text(first, last.entry->begin_ns).substr(11) : "", state_of(first, last),
                    std::array{"not recorded", "timed out", "failed"}[static_cast<std::size_t>(first.end)]});
  }
  out += lay_out(rows, 2);
  for (const auto& [key, group] : at)
    if (group.front()->end == FlightEnd::waited) {
      out += format("{} said: {}\n", rank_text(*group.front()), excerpt(group.front()->message, 1000));
      break;
    }
  const auto has = [&](bool FlightRecord::*what) {
    return std::any_of(records.begin(), records.end(), [&](const FlightRecord& record) { return record.*what; });
  };
  if (has(&FlightRecord::queued))
    out +=
        "on a GPU operations are queued: begun means given to a stream; which are done is known only at the end of an update\n";
  if (has(&FlightRecord::copied))
    out += "these records were copied to the file once a second: a rank that was killed or stopped may have come further\n";
  const Diagnosis verdict = judge(folder);
  return out + verdict.text + "\n" + verdict.cause + "\n";
}

nlohmann::json flight_to_json(const FlightFolder& folder) {
  nlohmann::json json = {{"folder", folder.path.string()}, {"problems", folder.problems}, {"missing", folder.missing}};
  const Diagnosis verdict = judge(folder);
  json["verdict"] = verdict.text, json["what_to_do"] = verdict.cause;
  json["ranks_to_look_at"] = verdict.ranks;
  json["ranks"] = nlohmann::json::array();
  for (const FlightRecord& record : folder.records) {
    nlohmann::json lanes = nlohmann::json::object();
    for (const FlightRecord::Lane& lane : record.lanes) {
      if (lane.begun == 0) continue;
      nlohmann::json entries = nlohmann::json::array();
      for (const FlightEntry& entry : lane.entries)
        entries.push_back(
            {{"number", entry.number},
             {"what", name_of(entry)},
             {"update", entry.update},
             {"micro_batch", entry.micro_batch},
             {"bytes", entry.bytes},
             {"exchange", entry.exchanges != 0},
             {"begin_unix_ns", entry.begin_ns + record.clock_ns},
             {"ms",
              entry.end_ns == 0 ? nlohmann::json() : nlohmann::json(1e-6 * static_cast<double>(entry.end_ns - entry.begin_ns))},
             {"done", entry.number <= lane.done}});
      lanes[lane.name] = {{"begun", lane.begun}, {"done", lane.done}, {"entries", std::move(entries)}};
    }
    json["ranks"].push_back({{"rank", record.rank},
                             {"host", record.host},
                             {"process", record.process},
                             {"version", record.version},
                             {"queued", record.queued},
                             {"copied", record.copied},
                             {"end", std::array{"none", "waited", "failed"}[static_cast<std::size_t>(record.end)]},
                             {"message", record.message},
                             {"lanes", std::move(lanes)}});
  }
  return json;
}

}  // namespace fsdp
