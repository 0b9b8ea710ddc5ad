// RoomTurn: whose turn it is to wait for room that ops of other threads hold.
//
// An op holds blocks while it asks for more of them. Two ops that each hold a part of what the other needs
// would wait for ever. So one thread of the process at a time, whose turn it is, waits for others while it
// holds anything. Who finds no room without having the turn lets go of all that it holds, and then waits for
// its turn.
//
// Why no circle of waits can close: let T have the turn. T waits for blocks that others hold. Each of those
// either goes on, and lets go at the end of its op, or needs room itself: then it lets go at once, since T
// has the turn. Whoever waits for the turn holds nothing that T, or anybody, could wait for. T keeps what it
// has, so with each block that it gets it needs one less, and its op ends. Turns go round in the order of
// asking, and what waits for its turn comes before whoever finds no room later: each op gets its turn.
//
// One turn for all devices, since an op may hold blocks of two.
#pragma once

#include <cstdint>

namespace gpk {

class RoomTurn {
   public:
    RoomTurn();  // waits for it; the thread holds no block, and has no turn yet
    ~RoomTurn();
    RoomTurn(const RoomTurn&) = delete;
    RoomTurn& operator=(const RoomTurn&) = delete;

    static bool is_mine() noexcept { return mine_; }
    static bool is_anothers() noexcept;  // or several wait for it

   private:
    static inline thread_local constinit bool mine_ = false;
};

}  // namespace gpk
