// A vocabulary that is cut over the ranks of a pipeline (arXiv 2411.05288). Every rank has some
// rows of the embedding table and of the output matrix.
//
// The rank of the last stage norms its output and sends it to all (spread_output()). S computes the
// logits of a rank's rows and sends the terms of their softmax to all. T computes the logits again,
// so that none are kept, and with the terms of all ranks their gradients. The last stage's backward
// adds up the gradients of the normed output. They come from T; or from S, up to a factor that
// depends on all terms, and with the label's row apart. The rows of the embedding are zero for
// tokens of other ranks; the first stage's forward adds them up, and its backward sends their
// gradient to all.
//
// All of this goes in messages between two ranks: blocks from first to last, except gradients of T
// and G, from last to first. The receiver takes them in the sender's order. What an action receives
// comes before its computation, what it sends after it.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "planner/program/lowering/lowering.h"

namespace longspan {

// Every rank uses a microbatch's tokens in E, S, T and G, or in F and B of the first stage.
void StepLowering::open_shared_tokens() {
  SharedTokens& tokens = shared_tokens_[microbatch_];
  if (tokens.all < 0) {
    tokens.all = builder_.create(Tensor::tokens_all, Tier::host, -1, 0);
    builder_.compute(shape(OpKind::batch), -1, microbatch_, {out(tokens.all)}, Stream::host);
  }
  tokens_all_ = tokens.all;
}

void StepLowering::close_shared_tokens() {
  constexpr int kUses = 4;
  if (++shared_tokens_[microbatch_].uses == kUses) builder_.release(tokens_all_);
  tokens_all_ = -1;
}

std::vector<int32_t> StepLowering::receivers(Tensor what) const {
  const VocabularyCut& cut = program_.vocabulary;
  if (what == Tensor::sum_own || what == Tensor::vocabulary_gradient) return {cut.last};
  if (what == Tensor::x) return {cut.first};
  std::vector<int32_t> others;
  for (int32_t mesh = 0; mesh < static_cast<int32_t>(program_.place.meshes); ++mesh) {
    if (mesh != program_.place.mesh) others.push_back(mesh);
  }
  return others;
}

void StepLowering::shared_message(OpKind kind, Tensor what, int block, Operand rows, int32_t mesh) {
  builder_.message(shape(kind, what), block, rows).peer = mesh;
}

SharedRows& StepLowering::keep_shared(Tensor what) {
  return kept_shared_.emplace_back(SharedRows{what, microbatch_, std::vector<Parked>(blocks_)});
}

SharedRows StepLowering::take_shared(Tensor what) {
  const auto kept = std::find_if(
      kept_shared_.begin(), kept_shared_.end(),
      [&](const SharedRows& each) { return each.what == what && each.microbatch == microbatch_; });
  if (kept == kept_shared_.end()) {
    throw bad_input("microbatch {}: {} of the vocabulary's share is used before it is there",
                    microbatch_, name_of(what));
  }
  SharedRows taken = std::move(*kept);
  kept_shared_.erase(kept);
  return taken;
}

SharedRows& StepLowering::begin_sending(Tensor what) {
  SharedRows leaving{what, microbatch_};
  leaving.rows.resize(blocks_, -1);
  return sent_shared_.emplace_back(std::move(leaving));
}

void StepLowering::send_shared(SharedRows& leaving, int block, BufferId rows) {
  leaving.rows[block] = rows;
  for (const int32_t mesh : receivers(leaving.what)) {
    shared_message(OpKind::send, leaving.what, block, in(rows), mesh);
  }
}

void StepLowering::await_shared(const SharedSent& sent) {
  const auto left =
      std::find_if(sent_shared_.begin(), sent_shared_.end(), [&](const SharedRows& each) {
        return each.what == sent.what && each.microbatch == sent.microbatch;
      });
  if (left == sent_shared_.end()) {
    throw bad_input("microbatch {}: {} of the vocabulary's share is awaited before it is sent",
                    sent.microbatch, name_of(sent.what));
  }
  builder_.set_microbatch(sent.microbatch);
  for (int block = 0; block < blocks_; ++block) {
    for (const int32_t mesh : receivers(sent.what)) {
      shared_message(OpKind::sent, sent.what, block, in(left->rows[block]), mesh);
    }
    if (!left->stay) builder_.release(left->rows[block]);
  }
  sent_shared_.erase(left);
}

void StepLowering::add_shares(Tensor what, int block, BufferId sum) {
  for (int32_t mesh = 0; mesh < static_cast<int32_t>(program_.place.meshes); ++mesh) {
    if (mesh == program_.place.mesh) continue;
    const BufferId part = device(what, -1, block);
    shared_message(OpKind::receive, what, block, out(part), mesh);
    builder_.compute(shape(OpKind::add, what), -1, block, {inout(sum), in(part)});
    builder_.release(part);
  }
}

void StepLowering::finish_share(int unit) {
  int64_t& left = contributions_[unit == embedding_unit() ? 0 : 1];
  const bool of_stage = std::exchange(last_microbatch_, --left == 0);
  finish_gradients(unit);
  last_microbatch_ = of_stage;
}

// --- the embedding

void StepLowering::share_of_embedding() {
  open_shared_tokens();
  const BufferId table = parameters(embedding_unit());
  SharedRows& leaving = begin_sending(Tensor::x);
  for (int block = 0; block < blocks_; ++block) send_shared(leaving, block, lookup(table, block));
  release_parameters(embedding_unit());
  close_shared_tokens();
}

void StepLowering::gather_embedding() {
  open_shared_tokens();
  const BufferId table = parameters(embedding_unit());
  for (int block = 0; block < blocks_; ++block) {
    const BufferId x = lookup(table, block);
    add_shares(Tensor::x, block, x);
    residual_[block] = builder_.park(x, block_between_uses());
  }
  release_parameters(embedding_unit());
  close_shared_tokens();
}

void StepLowering::spread_embedding_gradient() {
  open_shared_tokens();
  SharedRows& leaving = begin_sending(Tensor::dx);
  for (int block = blocks_ - 1; block >= 0; --block) {
    const Parked waiting = std::exchange(gradient_[block], {});
    const BufferId dx = builder_.fetch(waiting);
    if (waiting.host >= 0) builder_.release(waiting.host);
    embedding_gradient(block, dx);
    send_shared(leaving, block, dx);
  }
  finish_share(embedding_unit());
  close_shared_tokens();
}

void StepLowering::share_of_embedding_backward() {
  open_shared_tokens();
  for (int block = blocks_ - 1; block >= 0; --block) {
    const BufferId dx = device(Tensor::dx, -1, block);
    shared_message(OpKind::receive, Tensor::dx, block, out(dx), program_.vocabulary.first);
    embedding_gradient(block, dx);
    builder_.release(dx);
  }
  finish_share(embedding_unit());
  close_shared_tokens();
}

// --- the output layer

// The last stage's output stays for the norm's backward, where its gradient will be.
void StepLowering::spread_output() {
  const BufferId head = parameters(head_unit());
  SharedRows& kept = keep_shared(Tensor::h_own);
  SharedRows& leaving = begin_sending(Tensor::h_own);
  leaving.stay = block_between_uses() == Saved::keep;
  for (int block = 0; block < blocks_; ++block) {
    const BufferId x = builder_.fetch(residual_[block]), h = device(Tensor::h_own, -1, block);
    builder_.compute(shape(OpKind::final_norm_forward), -1, block, {in(head), in(x), out(h)});
    builder_.release_fetched(residual_[block], x);
    gradient_[block] = std::exchange(residual_[block], {});
    kept.blocks[block] = leaving.stay ? Parked{.device = h} : builder_.save(h, Saved::host);
    send_shared(leaving, block, h);
  }
  release_parameters(head_unit());
}

void StepLowering::vocabulary_forward() {
  open_shared_tokens();
  const BufferId output = parameters(output_unit());
  SharedRows hidden = is_last_mesh()
                          ? take_shared(Tensor::h_own)
                          : SharedRows{Tensor::h_own, microbatch_, std::vector<Parked>(blocks_)};
  SharedRows terms{Tensor::vocabulary_terms, microbatch_, std::vector<Parked>(blocks_)};
  SharedRows gradient{Tensor::vocabulary_gradient, microbatch_, std::vector<Parked>(blocks_)};
  OpShape op = shape(OpKind::vocabulary_forward);
  op.for_input = !program_.vocabulary.gradient_in_t;
  if (op.for_input && !is_last_mesh()) begin_sending(Tensor::vocabulary_gradient);
  begin_sending(Tensor::vocabulary_terms);
  for (int block = 0; block < blocks_; ++block) {
    BufferId h = -1;
    if (is_last_mesh()) {
      h = builder_.fetch(hidden.blocks[block]);
    } else {
      h = device(Tensor::h_own, -1, block);
      shared_message(OpKind::receive, Tensor::h_own, block, out(h), program_.vocabulary.last);
    }
    const BufferId tokens = load_tokens(block);
    const BufferId own = device(Tensor::vocabulary_terms, -1, block);
    const BufferId workspace = device(Tensor::ws_vocabulary, -1, block);
    const BufferId part = op.for_input ? device(Tensor::vocabulary_gradient, -1, block) : -1;
    builder_.compute(op, -1, block,
                     {in(output), in(h), in(tokens), out(own), out(workspace), out(part)});
    builder_.release(workspace);
    builder_.release(tokens);
    if (is_last_mesh()) {
      builder_.release_fetched(hidden.blocks[block], h);
    } else {
      hidden.blocks[block] = builder_.park(h, block_between_uses());
    }
    terms.blocks[block].device = own;
    send_shared(sent_shared_.back(), block, own);
    if (!op.for_input) continue;
    if (is_last_mesh()) {
      gradient.blocks[block] = builder_.park(part, block_between_uses());
    } else {
      send_shared(sent_shared_[sent_shared_.size() - 2], block, part);
    }
  }
  release_parameters(output_unit());
  kept_shared_.push_back(std::move(hidden));
  kept_shared_.push_back(std::move(terms));
  if (op.for_input && is_last_mesh()) kept_shared_.push_back(std::move(gradient));
  close_shared_tokens();
}

// A rank's own terms come first, the others in the order of their meshes. Where S computes the
// gradient of the output, the last stage's rank uses them in T and in B, in any order.
SharedTerms& StepLowering::open_shared_terms() {
  const auto known =
      std::find_if(shared_terms_.begin(), shared_terms_.end(),
                   [&](const SharedTerms& t) { return t.microbatch == microbatch_; });
  if (known != shared_terms_.end()) return *known;
  const bool keeps_parts = is_last_mesh() && !program_.vocabulary.gradient_in_t;
  const SharedRows own = take_shared(Tensor::vocabulary_terms);
  SharedTerms all{microbatch_, keeps_parts ? 2 : 1};
  all.parts.assign(program_.place.meshes, std::vector<BufferId>(blocks_, -1));
  for (int block = 0; block < blocks_; ++block) {
    const BufferId terms = all.merged.emplace_back(device(Tensor::vocabulary_terms, -1, block));
    OpShape op = shape(OpKind::vocabulary_merge);
    op.first = true;
    const BufferId first = all.parts[program_.place.mesh][block] = own.blocks[block].device;
    builder_.compute(op, -1, block, {in(first), out(terms)});
    op.first = false;
    for (const int32_t mesh : receivers(Tensor::vocabulary_terms)) {
      const BufferId part = device(Tensor::vocabulary_terms, -1, block);
      shared_message(OpKind::receive, Tensor::vocabulary_terms, block, out(part), mesh);
      builder_.compute(op, -1, block, {in(part), inout(terms)});
      if (keeps_parts) {
        all.parts[mesh][block] = part;
      } else {
        builder_.release(part);
      }
    }
  }
  return shared_terms_.emplace_back(std::move(all));
}

void StepLowering::close_shared_terms() {
  const auto all = std::find_if(shared_terms_.begin(), shared_terms_.end(),
                                [&](const SharedTerms& t) { return t.microbatch == microbatch_; });
  if (--all->uses > 0) return;
  const bool kept_parts = is_last_mesh() && !program_.vocabulary.gradient_in_t;
  for (int block = 0; block < blocks_; ++block) {
    builder_.release(all->merged[block]);
    // A rank's own are freed once they have left.
    for (const int32_t mesh : receivers(Tensor::vocabulary_terms)) {
      if (kept_parts) builder_.release(all->parts[mesh][block]);
    }
  }
  shared_terms_.erase(all);
}

void StepLowering::vocabulary_backward() {
  open_shared_tokens();
  const bool for_input = program_.vocabulary.gradient_in_t;
  const std::vector<BufferId>& merged = open_shared_terms().merged;
  const BufferId output = parameters(output_unit()), grads = gradients(output_unit());
  const SharedRows hidden = take_shared(Tensor::h_own);
  SharedRows* to = nullptr;
  if (for_input) {
    to = is_last_mesh() ? &keep_shared(Tensor::sum_own) : &begin_sending(Tensor::sum_own);
  }
  OpShape op = shape(OpKind::vocabulary_backward);
  op.for_input = for_input;
  for (int block = blocks_ - 1; block >= 0; --block) {
    const BufferId h = builder_.fetch(hidden.blocks[block]), tokens = load_tokens(block);
    const BufferId workspace = device(Tensor::ws_vocabulary, -1, block);
    const BufferId dh = for_input ? device(Tensor::sum_own, -1, block) : -1;
    const Operand loss = is_last_mesh() ? inout(program_.loss) : Operand{};
    builder_.compute(op, -1, block,
                     {in(output), in(h), in(tokens), in(merged[block]), inout(grads),
                      out(workspace), out(dh), loss});
    builder_.release(workspace);
    builder_.release(tokens);
    builder_.release_fetched(hidden.blocks[block], h);
    builder_.drop(hidden.blocks[block]);
    if (!for_input) continue;
    if (is_last_mesh()) {
      to->blocks[block] = builder_.park(dh, block_between_uses());
    } else {
      send_shared(*to, block, dh);
    }
  }
  close_shared_terms();
  release_parameters(output_unit());
  finish_share(output_unit());
  close_shared_tokens();
}

void StepLowering::combine_shares(int block, const Parked& own, const SharedTerms& terms,
                                  BufferId dh) {
  OpShape op = shape(OpKind::vocabulary_combine);
  op.first = true;
  const auto combine = [&](BufferId part, int64_t mesh) {
    builder_.compute(op, -1, block,
                     {in(part), in(terms.parts[mesh][block]), in(terms.merged[block]),
                      op.first ? out(dh) : inout(dh)});
    op.first = false;
  };
  const BufferId first = builder_.fetch(own);
  combine(first, program_.place.mesh);
  builder_.release_fetched(own, first);
  builder_.drop(own);
  for (const int32_t mesh : receivers(Tensor::vocabulary_terms)) {
    const BufferId part = device(Tensor::vocabulary_gradient, -1, block);
    shared_message(OpKind::receive, Tensor::vocabulary_gradient, block, out(part), mesh);
    combine(part, mesh);
    builder_.release(part);
  }
}

void StepLowering::gather_output_gradient() {
  const BufferId head = parameters(head_unit()), grads = gradients(head_unit());
  const bool from_t = program_.vocabulary.gradient_in_t;
  const SharedRows own = take_shared(from_t ? Tensor::sum_own : Tensor::vocabulary_gradient);
  const SharedTerms* terms = from_t ? nullptr : &open_shared_terms();
  for (int i = 0; i < blocks_; ++i) {
    const int block = from_t ? blocks_ - 1 - i : i;  // S sends its parts from the first block on
    const Parked waiting = gradient_[block];
    BufferId dh = -1;
    if (from_t) {
      dh = builder_.fetch(own.blocks[block]);
      add_shares(Tensor::sum_own, block, dh);
    } else {
      dh = device(Tensor::sum_own, -1, block);
      combine_shares(block, own.blocks[block], *terms, dh);
    }
    const BufferId x = builder_.fetch(waiting);
    builder_.compute(shape(OpKind::final_norm_backward), -1, block,
                     {in(head), in(x), in(dh), out(x), inout(grads)});
    if (from_t) {
      builder_.release_fetched(own.blocks[block], dh);
      builder_.drop(own.blocks[block]);
    } else {
      builder_.release(dh);
    }
    if (waiting.host >= 0) builder_.release(waiting.host);
    gradient_[block] = builder_.park(x, block_between_uses());
  }
  if (!from_t) close_shared_terms();
  release_parameters(head_unit());
  finish_share(head_unit());
}

}  // namespace longspan
