//! Waiting for the first item on several channels.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select, TryRecvError};

/// Takes an item from the first of these receivers that has one, beginning with number `from`.
/// Returns the receiver's number with the item, or without one if all its senders are gone. `None`
/// if nothing arrives within `limit`, and never earlier than that.
pub(super) fn first<'a, T: 'a>(
    receivers: impl ExactSizeIterator<Item = &'a Receiver<T>> + Clone,
    from: usize,
    limit: Duration,
) -> Option<(usize, Option<T>)> {
    let count = receivers.len();
    let poll = || {
        let all = receivers.clone().enumerate();
        all.clone().cycle().skip(from % count.max(1)).take(count).find_map(
            |(number, receiver)| match receiver.try_recv() {
                Ok(item) => Some((number, Some(item))),
                Err(TryRecvError::Disconnected) => Some((number, None)),
                Err(TryRecvError::Empty) => None,
            },
        )
    };
    let found = poll();
    if found.is_some() || limit.is_zero() {
        return found;
    }
    let began = Instant::now();
    let mut select = Select::new();
    for receiver in receivers.clone() {
        select.recv(receiver);
    }
    loop {
        let timed_out = select.ready_timeout(limit.saturating_sub(began.elapsed())).is_err();
        // A wake-up proves little. Senders wake receivers after the item becomes available, so
        // another receiver may have taken it.
        let found = poll();
        if found.is_some() || timed_out {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use crossbeam_channel::unbounded;

    use super::*;

    const FOREVER: Duration = Duration::from_secs(3_600);

    #[test]
    fn never_gives_up_early() {
        const ITEMS: u32 = 2_000;
        let (sender, receiver) = unbounded();
        let thief = receiver.clone();
        let sending = thread::spawn(move || {
            for item in 0..ITEMS {
                sender.send(item).unwrap();
                // Until both threads wait for the next item.
                thread::sleep(Duration::from_micros(50));
            }
        });
        // A waiting thread is woken for items that are gone when it checks.
        let stealing = thread::spawn(move || {
            let mut stolen = 0;
            loop {
                match thief.try_recv() {
                    Ok(_) => stolen += 1,
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Disconnected) => return stolen,
                }
            }
        });
        let mut taken = 0;
        loop {
            match first([&receiver].into_iter(), 0, FOREVER) {
                Some((0, Some(_))) => taken += 1,
                Some((0, None)) => break,
                other => panic!("{other:?} after {taken} items, long before the limit"),
            }
        }
        sending.join().unwrap();
        assert_eq!(taken + stealing.join().unwrap(), ITEMS);
    }

    #[test]
    fn takes_turns_and_ends_in_time() {
        let ((a, from_a), (b, from_b)) = (unbounded(), unbounded());
        let both = [&from_a, &from_b];
        let next = |from, limit| first(both.into_iter(), from, limit);
        assert_eq!(next(0, Duration::ZERO), None);
        assert_eq!(next(7, Duration::from_millis(1)), None);
        a.send('a').unwrap();
        b.send('b').unwrap();
        assert_eq!(next(1, Duration::ZERO), Some((1, Some('b'))));
        assert_eq!(next(2, FOREVER), Some((0, Some('a'))));
        drop(b);
        assert_eq!(next(0, FOREVER), Some((1, None)));
        assert_eq!(first(std::iter::empty::<&Receiver<()>>(), 0, Duration::from_millis(1)), None);
    }
}
