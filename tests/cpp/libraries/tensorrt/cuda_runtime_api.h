// All that NvInferRuntime.h needs of CUDA's.
#pragma once

using cudaStream_t = struct CUstream_st*;
