//! The layout of NServiceBus' RabbitMQ transport, version 2 of its delays.

use delayline_core::{
    message::{Headers, Value},
    topology::ExchangeKind,
};

use super::{Address, Fallible, Layout, Vhost, Workload};
use crate::suite::broker::INBOX;

const TOP: u32 = 27;
const DELIVERY: &str = "nsb.v2.delay-delivery";

pub struct NServiceBus;

fn level(number: u32) -> String {
    format!("nsb.v2.delay-level-{number:02}")
}

/// The level of the highest set bit; level 0 for no delay.
fn first_level(delay: u64) -> u32 {
    delay.checked_ilog2().unwrap_or(0)
}

impl Layout for NServiceBus {
    fn install(&mut self, vhost: &mut Vhost<'_>, _: &Workload) -> Fallible<()> {
        let below = |number: u32| number.checked_sub(1).map_or_else(|| DELIVERY.to_owned(), level);
        vhost.exchange(DELIVERY, ExchangeKind::Topic)?;
        for number in 0..=TOP {
            let name = level(number);
            let ttl = i64::try_from(vhost.unit_ms << number)?;
            vhost.exchange(&name, ExchangeKind::Topic)?;
            vhost.queue(
                &name,
                &[
                    ("x-queue-type", "quorum".into()),
                    ("x-dead-letter-strategy", "at-least-once".into()),
                    ("x-overflow", "reject-publish".into()),
                    ("x-message-ttl", ttl.into()),
                    ("x-dead-letter-exchange", below(number).into()),
                ],
            )?;
            let above = "*.".repeat(usize::try_from(TOP - number)?);
            vhost.bind_queue(&name, &name, &format!("{above}1.#"))?;
            vhost.bind_exchange(&name, &below(number), &format!("{above}0.#"))?;
        }
        vhost.bind_queue(DELIVERY, INBOX, &format!("#.{INBOX}"))
    }

    fn address(&mut self, _: &mut Vhost<'_>, delay: u64) -> Fallible<Address> {
        // The header by which the transport itself knows a delayed message.
        let seconds = Value::I32(i32::try_from(delay)?);
        Ok(Address {
            exchange: level(first_level(delay)),
            key: key(delay),
            headers: Headers::from([("NServiceBus.Transport.RabbitMQ.DelayInSeconds".into(), seconds)]),
            ..Address::default()
        })
    }

    fn first_queue(&self, delay: u64) -> Option<String> {
        Some(level(first_level(delay)))
    }
}

/// 28 bits, the highest first, and the destination.
fn key(delay: u64) -> String {
    let bits: String = (0..=TOP).rev().map(|bit| if delay >> bit & 1 == 1 { "1." } else { "0." }).collect();
    bits + INBOX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_begins_with_28_bits() {
        assert_eq!(key(5), format!("{}1.0.1.inbox", "0.".repeat(25)));
        assert_eq!((first_level(5), first_level(1), first_level(3_600)), (2, 0, 11));
    }
}
