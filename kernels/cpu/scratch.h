// Working memory of a decode step: taken in order, given back at the end of a scope, kept for the next step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace k3rl {

class Scratch {
 public:
  float* floats(int64_t count) { return static_cast<float*>(take(count * sizeof(float))); }
  int64_t* ints(int64_t count) { return static_cast<int64_t*>(take(count * sizeof(int64_t))); }

  void* take(int64_t size) {
    if (used_ == blocks_.size()) blocks_.push_back({nullptr, -1});
    Block& block = blocks_[used_++];
    if (block.size < size) block = {std::unique_ptr<char[]>(new char[size]), size};
    return block.bytes.get();
  }

  // Gives back, at its end, what was taken since its beginning.
  class Mark {
   public:
    explicit Mark(Scratch& scratch) : scratch_(scratch), used_(scratch.used_) {}
    ~Mark() { scratch_.used_ = used_; }

   private:
    Scratch& scratch_;
    size_t used_;
  };

 private:
  struct Block {
    std::unique_ptr<char[]> bytes;
    int64_t size;
  };

  std::vector<Block> blocks_;
  size_t used_ = 0;
};

}  // namespace k3rl
