#include "engine/train/state_formats.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bfloat16.h"
#include "models/nf4.h"
#include "planner/program/moment_format.h"

namespace longspan {
namespace {

// Whether a state's buffer holds the parameters that kernels read, as bfloat16.
bool held_narrow(const Program& program, BufferId buffer) {
  return program.dtype == DType::bfloat16 && is_parameters(program.buffers[buffer].tensor);
}

// The unit of a buffer with parameters in 4 bits, as this rank's program has it. No rank has a
// part.
ParameterUnit unit_of(const Program& program, BufferId buffer) {
  return parameter_units(program.model)[static_cast<size_t>(program.buffers[buffer].index)];
}

std::vector<float> read_nf4(const Executor& executor, BufferId buffer) {
  const Program& program = executor.program();
  const ParameterUnit unit = unit_of(program, buffer);
  const Nf4Layout layout(unit, size_of(program.dtype));
  std::vector<std::byte> bytes(static_cast<size_t>(program.bytes_of(buffer)));
  executor.read(buffer, bytes.data());
  const auto* scales = reinterpret_cast<const float*>(bytes.data());
  std::vector<float> values(static_cast<size_t>(unit.elements));
  for (const Nf4Layout::Run& run : layout.runs) {
    for (int64_t i = 0; i < run.elements; ++i) {
      const int64_t at = run.at + i;
      float& value = values[static_cast<size_t>(run.first + i)];
      if (run.in_matrices) {
        const auto pair =
            static_cast<unsigned>(bytes[static_cast<size_t>(layout.codes_offset + at / 2)]);
        value = kNf4Levels[at % 2 == 0 ? pair >> 4 : pair & 15U] * scales[at / kNf4Block];
      } else if (program.dtype == DType::float32) {
        std::memcpy(&value, bytes.data() + layout.plain_offset + 4 * at, 4);
      } else {
        bfloat16 narrowed;
        std::memcpy(&narrowed, bytes.data() + layout.plain_offset + 2 * at, 2);
        value = widen(narrowed);
      }
    }
  }
  return values;
}

void write_nf4(Executor& executor, BufferId buffer, const std::vector<float>& values) {
  const Program& program = executor.program();
  const Nf4Layout layout(unit_of(program, buffer), size_of(program.dtype));
  std::vector<std::byte> bytes(static_cast<size_t>(layout.total_bytes));
  auto* scales = reinterpret_cast<float*>(bytes.data());
  const auto for_matrices = [&](const auto& use) {
    for (const Nf4Layout::Run& run : layout.runs) {
      for (int64_t i = 0; run.in_matrices && i < run.elements; ++i) {
        use(run.at + i, values[static_cast<size_t>(run.first + i)]);
      }
    }
  };
  for_matrices([&](int64_t at, float value) {
    scales[at / kNf4Block] = std::max(scales[at / kNf4Block], std::abs(value));
  });
  for_matrices([&](int64_t at, float value) {
    const float scale = scales[at / kNf4Block];
    const auto code = static_cast<unsigned>(nf4_code(scale > 0 ? value / scale : 0));
    bytes[static_cast<size_t>(layout.codes_offset + at / 2)] |=
        static_cast<std::byte>(at % 2 == 0 ? code << 4 : code);
  });
  for (const Nf4Layout::Run& run : layout.runs) {
    for (int64_t i = 0; !run.in_matrices && i < run.elements; ++i) {
      const float value = values[static_cast<size_t>(run.first + i)];
      const bfloat16 narrowed = narrow(value);
      std::byte* to = bytes.data() + layout.plain_offset;
      if (program.dtype == DType::float32) std::memcpy(to + 4 * (run.at + i), &value, 4);
      if (program.dtype != DType::float32) std::memcpy(to + 2 * (run.at + i), &narrowed, 2);
    }
  }
  executor.write(buffer, bytes.data());
}

bool is_moment(const Program& program, BufferId buffer) {
  const Tensor tensor = program.buffers[buffer].tensor;
  return tensor >= Tensor::adam_m_embedding && tensor <= Tensor::adam_v_adapters;
}
bool is_second_moment(const Program& program, BufferId buffer) {
  return program.buffers[buffer].tensor >= Tensor::adam_v_embedding;
}

// The numbers of a buffer of moments: as many as the gradients of its unit, or of a rank's shard.
int64_t moment_elements(const Program& program, BufferId buffer) {
  const Buffer& moments = program.buffers[buffer];
  const int unit = static_cast<int>(moments.tensor) % kUnitKinds;
  const Tensor gradients = unit_tensor(Tensor::grads_embedding_shard, static_cast<UnitKind>(unit));
  return program.table_of(moments.kind)[gradients] / 4;
}

// Calls use(first, count) for every block of a moment.
template <class Use>
void for_moment_blocks(int64_t elements, const Use& use) {
  for (int64_t first = 0; first < elements; first += kMomentBlock) {
    use(first, std::min(kMomentBlock, elements - first));
  }
}

std::vector<float> read_moments(const Executor& executor, BufferId buffer) {
  const Program& program = executor.program();
  const int64_t elements = moment_elements(program, buffer);
  std::vector<std::byte> bytes(static_cast<size_t>(program.bytes_of(buffer)));
  executor.read(buffer, bytes.data());
  std::vector<float> values(static_cast<size_t>(elements));
  for_moment_blocks(elements, [&](int64_t first, int64_t count) {
    read_moment(program.strategy.moments, is_second_moment(program, buffer), bytes.data(), elements,
                first, count, values.data() + first);
  });
  return values;
}

void write_moments(Executor& executor, BufferId buffer, const std::vector<float>& values) {
  const Program& program = executor.program();
  const auto elements = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes(static_cast<size_t>(program.bytes_of(buffer)));
  for_moment_blocks(elements, [&](int64_t first, int64_t count) {
    write_moment(program.strategy.moments, is_second_moment(program, buffer), values.data() + first,
                 elements, first, count, bytes.data());
  });
  executor.write(buffer, bytes.data());
}

}  // namespace

int64_t state_elements(const Program& program, BufferId buffer) {
  if (is_nf4(program.buffers[buffer].tensor)) return unit_of(program, buffer).elements;
  if (is_moment(program, buffer)) return moment_elements(program, buffer);
  return program.bytes_of(buffer) / (held_narrow(program, buffer) ? 2 : 4);
}

std::vector<float> read_state(const Executor& executor, BufferId buffer) {
  const Program& program = executor.program();
  if (is_nf4(program.buffers[buffer].tensor)) return read_nf4(executor, buffer);
  if (is_moment(program, buffer)) return read_moments(executor, buffer);
  std::vector<float> values(static_cast<size_t>(state_elements(program, buffer)));
  if (!held_narrow(program, buffer)) {
    executor.read(buffer, values.data());
    return values;
  }
  std::vector<bfloat16> narrow_values(values.size());
  executor.read(buffer, narrow_values.data());
  std::transform(narrow_values.begin(), narrow_values.end(), values.begin(), widen);
  return values;
}

void write_state(Executor& executor, BufferId buffer, const std::vector<float>& values) {
  const Program& program = executor.program();
  if (is_nf4(program.buffers[buffer].tensor)) return write_nf4(executor, buffer, values);
  if (is_moment(program, buffer)) return write_moments(executor, buffer, values);
  if (!held_narrow(program, buffer)) return executor.write(buffer, values.data());
  std::vector<bfloat16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), narrow);
  executor.write(buffer, rounded.data());
}

}  // namespace longspan
