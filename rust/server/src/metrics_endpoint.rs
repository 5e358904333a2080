//! The text endpoint of metrics: HTTP on the loopback address.
//!
//! Owns: the listener, its bounds, the answer to each request.
//! Does not own: the text (`fastchangelog_store::metrics`), HTTP itself (`hyper`), the choice of the port (the option
//! `metrics_port`).
//!
//! It has one thread for connections and one for texts, both its own: no session waits for a reader. Every connection
//! answers one request and ends within [`MAX_CONNECTION_TIME`].

use fastchangelog_format::error::Subject;
use fastchangelog_format::{Error, Result};
use fastchangelog_store::metrics::CONTENT_TYPE;
use fastchangelog_store::threads::spawn;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE as CONTENT_TYPE_HEADER, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};

/// Connections at the same time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 8;
/// Bytes of a request's head.
const MAX_HEAD: usize = 8 << 10;
/// The whole life of a connection.
const MAX_CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Pause after a failed accept, such as one for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes the text of a request.
pub type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// A listening endpoint; a drop stops it.
#[derive(Debug)]
pub struct MetricsEndpoint {
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
    stop: Option<oneshot::Sender<()>>,
}

impl MetricsEndpoint {
    /// Listens at `port` of 127.0.0.1, or at a free port for 0.
    pub fn start(port: u16, render: Render) -> Result<Self> {
        let cannot = |e: &std::io::Error| {
            Error::invalid(format!("cannot listen for metrics at 127.0.0.1:{port}: {e}"))
                .with_remedy("choose another port with the option `metrics_port`")
                .with_subject(Subject::Option("metrics_port".to_owned()))
                .with_io_source(e)
        };
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|e| cannot(&e))?;
        listener.set_nonblocking(true).map_err(|e| cannot(&e))?;
        let address = listener.local_addr().map_err(|e| cannot(&e))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .thread_name("fcl-metrics")
            .build()
            .map_err(|e| Error::io("cannot start the runtime of the metrics endpoint", &e))?;
        let (stop, stopped) = oneshot::channel();
        let thread = spawn("fcl-metrics", "the thread of the metrics endpoint", move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, render) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        })?;
        Ok(Self { address, thread: Some(thread), stop: Some(stop) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsEndpoint {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: StdListener, render: Render) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "metrics endpoint"),
    };
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let render = Arc::clone(&render);
                tokio::spawn(async move {
                    serve(stream, render).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve(stream: TcpStream, render: Render) {
    let service = service_fn(move |request| respond(request, Arc::clone(&render)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(MAX_CONNECTION_TIME)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let _ = tokio::time::timeout(MAX_CONNECTION_TIME, connection).await;
}

async fn respond(request: Request<Incoming>, render: Render) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() != "/metrics" {
        return Ok(plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n"));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(response);
    }
    // Not on the thread of connections: this may be the last user of a state, and would then close it.
    Ok(match tokio::task::spawn_blocking(move || render()).await {
        Ok(text) => {
            let mut response = Response::new(Full::new(Bytes::from(text)));
            response.headers_mut().insert(CONTENT_TYPE_HEADER, HeaderValue::from_static(CONTENT_TYPE));
            response
        }
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be read\n"),
    })
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;

    fn ask(endpoint: &MetricsEndpoint, request: &str) -> String {
        let mut client = Client::connect(endpoint.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A reset also closes the connection.
        let _ = client.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn endpoint() -> MetricsEndpoint {
        MetricsEndpoint::start(0, Arc::new(|| "text 1\n".to_owned())).unwrap()
    }

    #[test]
    fn a_get_has_the_text() {
        let answer = ask(&endpoint(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\ntext 1\n"), "{answer}");
        assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }

    #[test]
    fn anything_else_is_refused() {
        let endpoint = endpoint();
        for (request, status) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", "405"),
            ("nonsense\r\n\r\n", "400"),
        ] {
            let answer = ask(&endpoint, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {answer}");
        }
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * MAX_HEAD));
        assert!(!ask(&endpoint, &long).contains("200 OK"));
        assert!(ask(&endpoint, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("\r\n\r\n"));
    }

    #[test]
    fn a_text_that_cannot_be_made_is_an_error_and_the_next_is_tried() {
        let endpoint = MetricsEndpoint::start(0, Arc::new(|| panic!("no text"))).unwrap();
        for _ in 0..2 {
            let answer = ask(&endpoint, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
        }
    }

    #[test]
    fn clients_that_say_nothing_hold_it_up_for_a_bounded_time() {
        let endpoint = endpoint();
        let silent: Vec<Client> = (0..MAX_CONNECTIONS).map(|_| Client::connect(endpoint.address()).unwrap()).collect();
        assert!(ask(&endpoint, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("text 1\n"));
        drop(silent);
    }

    #[test]
    fn a_port_in_use_names_the_option_and_an_end_frees_it() {
        let first = endpoint();
        let port = first.address().port();
        let error = MetricsEndpoint::start(port, Arc::new(String::new)).unwrap_err();
        assert!(error.message().contains("`metrics_port`"), "{error}");
        drop(first);
        MetricsEndpoint::start(port, Arc::new(String::new)).unwrap();
    }
}
