// How a CUDA kernel is started.
#pragma once

namespace tightbeam {

struct Launch {
  int grid[3];
  int block;              // threads of a block, a multiple of 32
  unsigned shared_bytes;  // dynamic shared memory of a block
};

}  // namespace tightbeam
