#include "train/run_context.hpp"

#include "base/format.hpp"
#include "base/program.hpp"

namespace fsdp {

int with_flight_record(const RunContext& run, DeviceKind device, const std::function<int(FlightLanes&)>& work) {
  const std::filesystem::path& saves = run.options.save.folder;
  Communicator& world = run.world;
  if (agree(world, [&] { return world.rank() == 0 && put_flight_records_aside(saves); }))
    run.log.say(format("the previous run did not end normally; fsdp-inspect --flight {} shows what its ranks did last",
                       (saves / "flight.old").string()));
  FlightFile record(flight_folder(saves), world.rank(), world.size(), device);
  if (const std::int64_t without = world.sum(std::int64_t{!record.problem().empty()}); without > 0)
    run.log.warn(format("{} without a flight record (could not {})", plural(without, "rank"),
                        record.problem().empty() ? "make a file on another rank" : record.problem()));
  const auto remove = [&] {
    record.remove();
    world.barrier();
    if (world.rank() == 0) remove_flight_folder(saves);
  };
  try {
    const int code = work(record.lanes());
    remove();
    return code;
  } catch (const CollectiveError&) {
    remove();
    throw;
  } catch (const CollectiveTimeout& error) {
    record.ends(FlightEnd::waited, with_option_names(error.what()), error.ranks.empty() ? -1 : error.ranks[0]);
    throw RunError(format("{}; fsdp-inspect --flight {} shows what each rank did last", error.what(), saves.string()));
  } catch (const GroupAborted& error) {
    record.ends(FlightEnd::waited, error.what());
    throw;
  } catch (...) {
    record.ends(FlightEnd::failed, with_option_names(describe_current_exception().message));
    throw;
  }
}

void save(const LoopContext& loop, bool wait) {
  const FlightNote note(loop.flight, "save", loop.engine.progress().update);
  CheckpointHeader header = loop.header;
  header.progress = loop.engine.progress();
  loop.engine.save(loop.options.save, header, wait);
}

}  // namespace fsdp
