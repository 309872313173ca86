// Two peers that answer each other in simulated time, each with a Spin. Both sleep at first, as after a long pause.
// Prints the share of slow round trips in the second half, and the share of the time that was spent in failed spins.
//
// usage: spin WAKE_NS WORK_NS SHARED_CORE ROUNDS
#include <cstdio>
#include <cstdlib>

#include "core/bell.hpp"

using namespace motet;

struct Peer {
  Spin spin;
  i64 since = 0, budget = 0, spun = 0;
  void begin(i64 now) {
    since = now;
    budget = spin.budget();
  }
  // The bell rings at `rung`. Returns when the peer continues.
  i64 wake(i64 rung, i64 wake_ns, bool shared) {
    if (!shared && rung - since <= budget) {
      spin.learn(false);
      return rung;
    }
    spun += budget;
    if (budget) spin.learn(true);
    spin.slept(rung + wake_ns - since);
    return rung + wake_ns;
  }
};

int main(int, char** argv) {
  const i64 wake = std::atoll(argv[1]), work = std::atoll(argv[2]), shared = std::atoll(argv[3]);
  const int rounds = std::atoi(argv[4]);
  Peer asker, player;
  int slow = 0;
  i64 now = 0;
  asker.spin.penalty = player.spin.penalty = 1023;
  asker.spin.skip = 700;
  player.spin.skip = 100;
  player.begin(0);
  for (int i = 0; i < rounds; ++i) {
    const i64 asked = now;
    asker.begin(asked);
    // On a shared core the player runs only once the asker sleeps, and the other way round.
    i64 at = player.wake(asked, shared ? wake + asker.budget : wake, shared) + work;
    player.begin(at);
    now = asker.wake(at, shared ? wake + player.budget : wake, shared) + 500;
    slow += i >= rounds / 2 && now - asked > wake + work;
  }
  std::printf("%.4f %.4f\n", 2.0 * slow / rounds, double(asker.spun + player.spun) / double(now));
}
