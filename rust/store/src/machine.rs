//! The metadata service of a machine, which need not exist.
//!
//! Owns: its address, and the check whether something answers there.
//! Does not own: requests to it (`object_store`), the meaning of its errors (`diagnose`).
//!
//! A failing service is retried like any other. The discovery that there is none must be faster: a connection within
//! the machine's own network succeeds at once or never.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

/// Where the machines of Amazon and Azure have theirs.
pub(super) const LINK_LOCAL: &str = "http://169.254.169.254";
/// Where those of Google have theirs.
pub(super) const GOOGLE: &str = "http://metadata.google.internal";

/// Time for a connection in all.
const CONNECT: Duration = Duration::from_secs(1);
/// Refused connections before there is no service: one may start just now.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_millis(100);
/// After a failed look-up, time without another one: the requests of one call fail together.
const MEMORY: Duration = Duration::from_secs(5);

/// Whether the metadata service at an address exists.
#[derive(Debug)]
pub(super) struct Machine {
    host: String,
    port: u16,
    known: Mutex<Option<Known>>,
}

#[derive(Debug, Clone, Copy)]
enum Known {
    There,
    Absent(Instant),
}

impl Machine {
    /// The service at `endpoint`; none if that is not a URL with a host.
    pub(super) fn at(endpoint: &str) -> Option<Self> {
        let url = Url::parse(endpoint).ok()?;
        let (host, port) = (url.host_str()?, url.port_or_known_default()?);
        let host = host.trim_matches(['[', ']']).to_owned();
        Some(Self { host, port, known: Mutex::new(None) })
    }

    /// True if it answers, or did so before.
    pub(super) async fn exists(&self) -> bool {
        match *self.known.lock() {
            Some(Known::There) => return true,
            Some(Known::Absent(since)) if since.elapsed() < MEMORY => return false,
            _ => {}
        }
        let there = timeout(CONNECT, self.connects()).await.unwrap_or(false);
        *self.known.lock() = Some(if there { Known::There } else { Known::Absent(Instant::now()) });
        there
    }

    async fn connects(&self) -> bool {
        for attempt in 1..=TRIES {
            if TcpStream::connect((self.host.as_str(), self.port)).await.is_ok() {
                return true;
            }
            if attempt < TRIES {
                sleep(PAUSE).await;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[tokio::test]
    async fn a_service_that_listens_exists_and_is_not_looked_for_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let machine = Machine::at(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        assert!(machine.exists().await);
        drop(listener);
        assert!(machine.exists().await);
        assert!(Machine::at("no url").is_none());
    }

    #[tokio::test]
    async fn an_absent_service_is_known_within_a_second() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let machine = Machine::at(&format!("http://{free}")).unwrap();
        assert!(!machine.exists().await);
        let listener = TcpListener::bind(free).unwrap();
        assert!(!machine.exists().await, "not within the same call");
        machine.known.lock().take();
        assert!(machine.exists().await);
        drop(listener);
    }
}
