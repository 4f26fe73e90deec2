// What a prediction rests on: its constants, and sentences about its limits.
#pragma once

#include <string>
#include <vector>

#include "fsdp-plan/plan_table.hpp"

namespace fsdp {

/// Sentences for the user about the table's predictions: how far the method was compared with measurements, memory that is
/// nearly full, and the effect of a slow rank.
std::vector<std::string> prediction_notes(const PlanTable& table);

/// Returns a sentence if the memory of a rank nearly fills the table's GPU; else nothing. `of` names what needs it.
std::vector<std::string> memory_notes(const PlanTable& table, const std::string& of, std::size_t memory);

/// The notes as paragraphs of at most 100 columns.
std::string text_of(const std::vector<std::string>& notes);

/// Milliseconds for a cell of a table: "12.3", "12345".
std::string ms_cell(double seconds);

/// The constants with their sources, at most 100 columns wide.
std::string rates_table(const std::vector<NamedRate>& rates);
/// "all-gather".
const char* name_of_collective(Collective collective);

}  // namespace fsdp
