//! Calls of the state server that only Linux has. Elsewhere the crate compiles, and the server refuses to start.
//!
//! Owns: waking the thread that accepts connections, the user of a peer, and the refusal on other systems. `--cfg
//! fastchangelog_portable` compiles the refusal on Linux, too, so that it can be tested there.
//! Does not own: the decision which users may connect (`server`). Python refuses before it starts a process
//! (`fastchangelog.server.platform`).

#[cfg(all(target_os = "linux", not(fastchangelog_portable)))]
pub(crate) use linux::{Wake, peer_user};
#[cfg(not(all(target_os = "linux", not(fastchangelog_portable))))]
pub(crate) use portable::{Wake, peer_user};

#[cfg(all(target_os = "linux", not(fastchangelog_portable)))]
mod linux {
    use fastchangelog_format::{Error, Result};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::process::Uid;
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    /// A descriptor that becomes readable when a thread calls [`Wake::wake`], and stays so.
    #[derive(Debug)]
    pub(crate) struct Wake(OwnedFd);

    impl Wake {
        pub(crate) fn new() -> Result<Self> {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            event.map(Self).map_err(|e| Error::io("cannot create an event descriptor", &e.into()))
        }

        pub(crate) fn wake(&self) {
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }
    }

    impl AsFd for Wake {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    /// The user of the process at the other end.
    pub(crate) fn peer_user(stream: &UnixStream) -> io::Result<Uid> {
        Ok(rustix::net::sockopt::socket_peercred(stream)?.uid)
    }
}

#[cfg(not(all(target_os = "linux", not(fastchangelog_portable))))]
mod portable {
    use fastchangelog_format::{Error, Result};
    use rustix::process::Uid;
    use std::convert::Infallible;
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;

    /// There is none, so there is no server.
    #[derive(Debug)]
    pub(crate) struct Wake(Infallible);

    impl Wake {
        pub(crate) fn new() -> Result<Self> {
            Err(Error::invalid("the state server runs on Linux only")
                .with_remedy("embedded states and fastchangelog.testing.run_processor work here"))
        }

        pub(crate) fn wake(&self) {
            match self.0 {}
        }
    }

    impl AsFd for Wake {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match self.0 {}
        }
    }

    /// Unknown.
    pub(crate) fn peer_user(_: &UnixStream) -> io::Result<Uid> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
#[path = "platform_tests.rs"]
mod tests;
