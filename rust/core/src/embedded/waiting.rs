//! Waits of the caller's thread for another one, in which handlers of signals run.
//!
//! Owns: how often they run. Does not own: what is waited for.

use fastchangelog_format::error::Result;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Interval between two checks for signals.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// What the other thread sends; none if it ends without. When `tick` fails, that is the answer at once.
pub(super) fn receive<T>(from: &Receiver<T>, tick: impl Fn() -> Result<()>) -> Result<Option<T>> {
    loop {
        match from.recv_timeout(TICK) {
            Ok(sent) => return Ok(Some(sent)),
            Err(RecvTimeoutError::Timeout) => tick()?,
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}
