#!/usr/bin/env bash
# compute-sanitizer over the kernels' tests, on the GPU at hand: each file of native/kernels is launched.
#
#   tests/sanitize_gpu.sh build/dev/pygpukit_tests [memcheck|synccheck|racecheck] [processes]
#
# A minute on 14 processes. racecheck, a hundred times as slow, gets small tests and prints what
# docs/kernels.md says of it. A block of the pool is up to an eighth longer than its array, so what is written
# right behind an array may go unseen.
set -euo pipefail
tests=$(realpath "${1:?usage: tests/sanitize_gpu.sh PYGPUKIT_TESTS [TOOL] [PROCESSES]}")
tool=${2:-memcheck}
processes=${3:-14}
cd "$(dirname "$0")/.."

everything=(
  'All/DecodeStepTest.*-*WideLayers*' 'All/DecodeCodesTest.*' 'LinearOptions.*:AppendAndAttend.*'
  'Matmul.*:Linear.*:MatmulVariants.*:-*Batches*' 'Matmul/Variants.Batches/*' '*Scaled*'
  '*GroupedVariants*:GroupedLinear.*' 'GatedLinear.*:QuantizedExperts.*' 'QuantizedLinear.*'
  'PackCodes.*:Quantize.*:*Dequantize*:GemmCodes.*'
  'FlashVariants.*' 'FlashFloat8.*:FlashValues.*' 'FlashAttention.*' 'Attention.*:AttentionCached.*'
  'Sample.*:SamplingWeights.*:Penalize.*:TopK.*' 'AcceptDrafts.*:NextToken.*:Choice.LogprobsAreLogSoftmax'
  'Route.*:SortByExpert.*:CombineExperts.*:Experts.*' 'LayerNorm.*:RmsNorm.*' 'Softmax.*:Glu.*:Rope.*:KvAppend.*'
  'Lstm.*:Conv1d.*' 'Reduce.*' 'ArgReduce.*:Variance.*' 'Copy.*:Assign.*:Fill.*:Creation.*' 'Unary.*:Where.*:Clip.*'
  'Binary.*' 'Take.*:Concat.*:Stack.*:Embedding.*'
)
small=(
  'All/DecodeStepTest.IsNearFloat64/0' 'All/DecodeCodesTest.IsNearFloat64/0' 'LinearOptions.NormsAndAddsInPlace'
  'AppendAndAttend.DropsWhatIsPastTheEnd:AttentionCached.WrongNumbersAreKeptInside' 'Attention.DecodeMatchesFloat64'
  'FlashVariants.TakeMasks' 'FlashVariants.TakePackedSequencesAndPages'
  'FlashFloat8.MasksAreFloat32OrBoolean:FlashValues.*' '*GroupedVariants*' 'GatedLinear.MatchesFloat64'
  'QuantizedLinear.IsTheSameEachTime:QuantizedLinear.ManyRowsAndFloat32' 'NextToken.*:AcceptDrafts.*'
  'GemmCodes.IsTheSameEachTimeAndTakesPartsOfRows' 'GemmCodes.TakesTheGroupsOfFiles'
  'TopK.OfRowsWithoutSpread:Sample.TiesGoToTheLowestIds:Sample.RowsHaveTheirOwnOptions:Sample.CountsWhatItDraws'
  'Softmax.ManyShortRows:LayerNorm.ManyRows:LayerNorm.AddsTheResidualAndGivesTheSum:RmsNorm.ManyRowsAndNoWeight'
  'Reduce.OddSizes:Reduce.LargeInTwoPasses' 'ArgReduce.TheFirstOfEqualsInTwoPasses:Variance.InTwoPasses'
  'Route.OrdersTiesInfinitiesAndNaN:SortByExpert.*:CombineExperts.AddsWhatTheExpertsMade'
  'Conv1d.ManyRows:Copy.TransposesInTiles:Copy.LargeTransposedConversions'
)

filters=("${everything[@]}")
options=(--tool "$tool" --error-exitcode 9)
if [[ $tool == racecheck ]]; then
  filters=("${small[@]}")
  options+=(--racecheck-indirect-barrier-dependency)
fi
export PYGPUKIT_TEST_DEVICE=cuda
printf '%s\0' "${filters[@]}" |
  xargs -0 -P "$processes" -I{} compute-sanitizer "${options[@]}" "$tests" --gtest_brief=1 '--gtest_filter={}'
