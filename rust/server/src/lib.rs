//! fastchangelog-server: one state server per Spark executor, and the client that talks to it.
//!
//! A session is a connection: it is opened, fed payloads, finished, committed; closing it before that aborts it.
//!
//! ```text
//! protocol   frames and the hello              both sides
//! backend    what the server serves            the engine, or a fake in tests
//! engine     the engine as a backend
//! server     listener, limits, peer check      accepts connections
//! shared     what connections share            flags, policies, failed shards
//! materializers   runs of live shards          follows their policies
//! maintenance     the thread that polls them
//! session    one connection, frame by frame    runs in a thread of its own
//! client     the other end                     synchronous, fork-safe, hears Ctrl-C
//! trust      whose socket it is                 before a client sends anything
//! report     a session's numbers               its line in the log
//! state_body, state_frames      bodies and requests of state sessions    both sides
//! state_connection              a state session on its connection
//! state_client                  its other end
//! metrics_endpoint   HTTP on the loopback address    Prometheus text
//! logfile    JSON lines with a size bound
//! process    all of it, from a text of settings
//! platform   what only Linux has                a refusal elsewhere
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod backend;
pub mod client;
mod engine;
pub mod logfile;
mod maintenance;
mod materializers;
pub mod metrics_endpoint;
mod platform;
pub mod process;
pub mod protocol;
mod report;
pub mod server;
mod session;
mod shared;
mod state_body;
pub mod state_client;
mod state_connection;
#[cfg(test)]
#[cfg(all(target_os = "linux", not(fastchangelog_portable)))]
mod state_fake;
mod state_frames;
mod trust;

pub use backend::{Backend, MaterializeBackend, OpenedSession, ResultStream, SessionBackend, StateBackend};
pub use client::{Client, ClientSettings, SessionClient};
pub use metrics_endpoint::MetricsEndpoint;
pub use server::{Server, ServerSettings};
pub use state_client::StateSessionClient;

/// The package's version: both ends of a connection must have the same.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
