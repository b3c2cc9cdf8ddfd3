//! What a tape promises when its writer is killed.

// A rank killed at any instant leaves a correct tape.
mod killed;

// The same a thousand times, with everything that a lane can hold.
mod killed_lane;
