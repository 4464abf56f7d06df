// Times and columns of the arrays of states. Python reads the sizes from the module.
#pragma once

namespace reflectdrive {

inline constexpr double kDtS = 0.1;              // between states
inline constexpr int kSteps = 40;                // of a candidate
inline constexpr int kInstants = kSteps + 1;     // of a candidate: 0, 0.1, .. 4 s
inline constexpr int kSamples = kInstants + 10;  // of an agent: 0, 0.1, .. 5 s

// Columns of a state, all at the rear axle.
enum State { X, Y, HEADING, VX, VY, AX, AY, STEERING, STEERING_RATE, YAW_RATE, YAW_ACCELERATION };
inline constexpr int kStateSize = YAW_ACCELERATION + 1;
inline constexpr int kMotionSize = kStateSize - VX;  // without the pose

}  // namespace reflectdrive
