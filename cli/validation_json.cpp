// The JSON document of `longspan validate`.
#include "cli/validation.h"
#include "validation/measure.h"

namespace longspan::cli {
namespace {

template <class T>
void put(Json& object, const char* key, const std::optional<T>& value) {
  if (value) object[key] = *value;
}

Json summary_json(const ErrorSummary& errors, const HeldOut* left_out = nullptr) {
  if (errors.count == 0) return {{"count", 0}};
  Json object = {{"count", errors.count},
                 {"median_absolute_error", errors.median},
                 {"mean_absolute_error", errors.mean},
                 {"worst_error", errors.worst},
                 {"bias", errors.bias}};
  if (left_out != nullptr) {
    object["left_out_mean_absolute_error"] = left_out->errors.mean;
    object["in_range"] = left_out->in_range;
  }
  return object;
}

Json reasons_json(const std::map<std::string, int64_t>& reasons) {
  Json list = Json::array();
  for (const auto& [reason, count] : reasons)
    list.push_back({{"reason", reason}, {"cases", count}});
  return list;
}

void put_report(Json& object, const TableReport& t) {
  object["cases"] = t.cases;
  object["predicted"] = t.predicted;
  object["step_time"] = summary_json(t.step, &t.step_left_out);
  object["mfu"] = summary_json(t.mfu);
  object["memory"] = summary_json(t.peak, &t.peak_left_out);
  object["longest_sequence"] = summary_json(t.longest, &t.longest_left_out);
  object["speedup"] = summary_json(t.speedup);
  object["fits"] = {{"trained_fits", t.fit.trained_fits},
                    {"trained_refused", t.fit.trained_refused},
                    {"at_risk", t.fit.at_risk},
                    {"failed_fits", t.fit.failed_fits},
                    {"failed_refused", t.fit.failed_refused}};
  Json peers = Json::array();
  for (const PeerErrors& peer : t.peers) {
    peers.push_back(
        {{"name", peer.name},
         {"step_time",
          {{"ours", summary_json(peer.ours_step)}, {"peer", summary_json(peer.peer_step)}}},
         {"memory",
          {{"ours", summary_json(peer.ours_peak)}, {"peer", summary_json(peer.peer_peak)}}}});
  }
  object["peers"] = std::move(peers);
  object["not_covered"] = reasons_json(t.not_covered);
  object["left_out"] = reasons_json(t.left_out);
  object["assumed"] = reasons_json(t.assumed);
}

Json case_json(const PublishedCase& c, const CasePrediction& p, const CaseErrors& e) {
  Json object = {{"name", c.name},
                 {"line", c.line},
                 {"model", c.model},
                 {"hardware", c.hardware},
                 {"gpus", c.gpus},
                 {"stack", c.stack},
                 {"chunk_tokens", c.chunk_tokens},
                 {"tensor", c.degrees.tensor},
                 {"ulysses", c.degrees.ulysses},
                 {"sequence_tokens", c.sequence}};
  put(object, "measured_step_seconds", e.measured_step_seconds);
  put(object, "predicted_step_seconds", p.step_seconds);
  put(object, "measured_mfu", c.measured.mfu);
  if (c.measured.mfu && p.step_seconds)
    put(object, "predicted_mfu", restated(c, *p.step_seconds).mfu);
  put(object, "step_error", e.step);
  put(object, "left_out_step_error", e.step_left_out);
  put(object, "mfu_error", e.mfu);
  put(object, "measured_peak_bytes", e.measured_peak_bytes);
  put(object, "predicted_peak_bytes", p.peak_bytes);
  put(object, "peak_error", e.peak);
  put(object, "left_out_peak_error", e.peak_left_out);
  if (c.measured.longest) object["measured_longest_tokens"] = c.sequence;
  put(object, "measured_longest_below_tokens", c.measured.longest_below);
  put(object, "predicted_longest_tokens", p.longest_sequence);
  if (p.longest_range) {
    object["longest_tokens_range"] = {p.longest_range->low, p.longest_range->high};
  }
  put(object, "longest_error", e.longest);
  put(object, "left_out_longest_error", e.longest_left_out);
  if (const auto& speedup = c.measured.speedup) {
    object["speedup_over"] = speedup->over;
    object["measured_speedup"] = {speedup->low, speedup->high};
  }
  put(object, "predicted_speedup", e.predicted_speedup);
  put(object, "speedup_error", e.speedup);
  object["out_of_memory"] = c.measured.out_of_memory;
  put(object, "predicted_to_fit", p.fits);
  if (p.verdict) object["verdict"] = name_of(*p.verdict);
  if (p.step_seconds && e.step_left_out) {
    const PredictionInterval& interval = published_intervals().step_under(family_of(c)).of(c.table);
    object["step_seconds_range"] = {*p.step_seconds * interval.low,
                                    *p.step_seconds * interval.high};
  }
  if (c.peer) object["peer"] = c.peer->name;
  put(object, "peer_step_error", e.peer_step);
  put(object, "peer_peak_error", e.peer_peak);
  put(object, "plan_step_error", e.plan_step);
  put(object, "plan_peak_error", e.plan_peak);
  if (!p.reason.empty()) object["not_covered"] = p.reason;
  if (!c.left_out.empty()) object["left_out"] = c.left_out;
  if (!c.assumed.empty()) object["assumed"] = c.assumed;
  return object;
}

Json report_json(const TableReport& t) {
  Json object;
  put_report(object, t);
  return object;
}

Json table_json(const TableReport& t) {
  Json object = {{"table", t.table}, {"file", t.file}, {"source", t.source}};
  put_report(object, t);
  return object;
}

Json table_reports_json(const std::vector<TableReport>& reports) {
  Json list = Json::array();
  for (const TableReport& t : reports) list.push_back(table_json(t));
  return list;
}

}  // namespace

Json validation_json(const Validation& v, bool with_cases) {
  Json tables = Json::array();
  for (const TableReport& t : v.report.tables) {
    Json object = table_json(t);
    if (with_cases) {
      Json results = Json::array();
      for (size_t i = 0; i < v.cases.size(); ++i) {
        if (v.cases[i].table != t.table) continue;
        results.push_back(case_json(v.cases[i], v.predictions[i], v.report.cases[i]));
      }
      object["results"] = std::move(results);
    }
    tables.push_back(std::move(object));
  }
  return {{"tables", std::move(tables)},
          {"overall", report_json(v.report.overall)},
          {"assumed",
           {{"tables", table_reports_json(v.report.assumed_tables)},
            {"overall", report_json(v.report.assumed_overall)}}}};
}

}  // namespace longspan::cli
