//! The endpoint of an S3 bucket: requests go to the bucket that the URI names, or the bucket is not opened.
//!
//! Owns: the accepted forms of an endpoint, and the match of endpoint, address style and bucket.
//! Does not own: the sources of endpoints (`env_vars`, `profile`), requests.
//!
//! There are two styles. In the path style the bucket stands in the path of each request, in the virtual-hosted style
//! in the name of the host. Amazon's tools and Hadoop take an endpoint without the bucket for both, `object_store`
//! wants one with the bucket for the second: here both are taken. Where an endpoint would lead to another bucket, or to
//! the bucket twice, it is refused.

use super::env_vars::is_on;
use super::redact::clean_url;
use fastchangelog_format::error::{Error, Result};
use object_store::aws::AmazonS3ConfigKey as Key;
use url::{Host, Url};

/// The options to set after `options` so that requests go to `bucket`; of two options of a name the last one counts.
pub(super) fn fitting(bucket: &str, options: &[(Key, String)]) -> Result<Vec<(Key, String)>> {
    let last = |wanted: Key| options.iter().rev().find(|(key, _)| *key == wanted).map(|(_, value)| value.as_str());
    let given = [Key::S3Endpoint, Key::Endpoint].into_iter().find_map(|key| Some((key, last(key)?)));
    let Some((key, endpoint)) = given else { return Ok(Vec::new()) };
    let url = parsed(key, endpoint)?;
    if last(Key::S3Express).is_some_and(is_on) {
        return Ok(Vec::new());
    }
    let host = url.host_str().unwrap_or_default();
    let without = host
        .get(bucket.len()..)
        .and_then(|rest| rest.strip_prefix('.'))
        .filter(|_| host[..bucket.len()].eq_ignore_ascii_case(bucket));
    let of_amazon = [".amazonaws.com", ".amazonaws.com.cn"].iter().any(|end| host.ends_with(end));
    let virtual_hosted = last(Key::VirtualHostedStyleRequest).map(is_on);
    let twice = |why: &str, remedy: &str| {
        let shown = clean_url(endpoint);
        Err(Error::invalid(format!("the endpoint {shown} names the bucket `{bucket}` {why}")).with_remedy(remedy))
    };
    if virtual_hosted == Some(true) {
        let in_paths_only = matches!(url.host(), Some(Host::Ipv4(_) | Host::Ipv6(_)));
        if in_paths_only {
            // No bucket fits into the name of such a host: Amazon's tools use the other style here, too.
            return Ok(vec![(Key::VirtualHostedStyleRequest, "false".to_owned())]);
        }
        let mut whole = url.clone();
        if without.is_none() {
            whole.set_host(Some(&format!("{bucket}.{host}"))).map_err(|e| {
                Error::invalid(format!("the bucket `{bucket}` cannot be a part of a host's name: {e}"))
                    .with_remedy("set the storage option `virtual_hosted_style_request` to false")
            })?;
        }
        return Ok(vec![(key, whole.as_str().trim_end_matches('/').to_owned())]);
    }
    let in_path = url.path_segments().and_then(|parts| parts.rev().find(|part| !part.is_empty()));
    if in_path.is_some_and(|part| part == bucket) {
        return twice("in its path, which would name it twice", "leave it out of the endpoint");
    }
    match without {
        Some(_) if of_amazon => twice(
            "in its host",
            "leave it out of the endpoint, or set the storage option `virtual_hosted_style_request` to true",
        ),
        Some(rest) if virtual_hosted.is_none() && rest.contains(|c: char| c == '.' || c.is_ascii_alphabetic()) => {
            twice(
                "in its host, or its host is called so",
                "leave the bucket out of the endpoint; or say with the storage option `virtual_hosted_style_request` \
             whether the endpoint holds the bucket (true) or not (false)",
            )
        }
        _ => Ok(Vec::new()),
    }
}

/// The endpoint as a URL of a host, without anything that does not belong there.
fn parsed(key: Key, endpoint: &str) -> Result<Url> {
    let (name, shown) = (key.as_ref(), clean_url(endpoint));
    let refused = |why: &str, remedy: &str| {
        Error::invalid(format!("the storage option `{name}` (an endpoint) {why}")).with_remedy(remedy)
    };
    if !endpoint.contains("://") {
        let held =
            if endpoint.contains('@') { "has no scheme".to_owned() } else { format!("is {shown}, without a scheme") };
        return Err(refused(&held, "begin it with http:// or https://"));
    }
    let url = Url::parse(endpoint).map_err(|e| {
        refused(&format!("is {shown}, which is no URL: {e}"), "write it as https://host:port").with_source(e)
    })?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("holds a user's name or a password", "pass credentials as storage options of their own"));
    }
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused(&format!("is {shown}"), "begin it with http:// or https://"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused(&format!("is {shown}, with a query or a fragment"), "write it as https://host:port"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(endpoint: &str, style: Option<&str>) -> Result<Vec<(Key, String)>> {
        let style = style.map(|style| (Key::VirtualHostedStyleRequest, style.to_owned()));
        let options: Vec<_> = [(Key::Endpoint, endpoint.to_owned())].into_iter().chain(style).collect();
        fitting("lake", &options)
    }

    #[test]
    fn the_bucket_is_named_once_in_each_style() {
        let unchanged = Vec::new();
        assert_eq!(fitting("lake", &[]).unwrap(), unchanged);
        for endpoint in [
            "https://s3.eu-west-1.amazonaws.com",
            "http://minio:9000",
            "http://10.0.0.1:9000",
            "https://gw/storage/v1/s3",
        ] {
            for style in [None, Some("false")] {
                assert_eq!(fit(endpoint, style).unwrap(), unchanged, "{endpoint}");
            }
        }
        let set = |endpoint: &str| vec![(Key::Endpoint, endpoint.to_owned())];
        assert_eq!(fit("http://minio:9000", Some("true")).unwrap(), set("http://lake.minio:9000"));
        assert_eq!(fit("http://lake.minio:9000/", Some("true")).unwrap(), set("http://lake.minio:9000"));
        let amazon = set("https://lake.s3.eu-west-1.amazonaws.com");
        assert_eq!(fit("https://s3.eu-west-1.amazonaws.com", Some("TRUE")).unwrap(), amazon);
        assert_eq!(fit("https://lake.s3.eu-west-1.amazonaws.com", Some("true")).unwrap(), amazon);
        let path_style = vec![(Key::VirtualHostedStyleRequest, "false".to_owned())];
        assert_eq!(fit("http://127.0.0.1:9000", Some("true")).unwrap(), path_style);
        assert_eq!(fit("http://[::1]:9000", Some("true")).unwrap(), path_style);
        assert_eq!(fit("http://lake.svc:9000", Some("false")).unwrap(), unchanged, "a host of that name");
        let both = [(Key::S3Endpoint, "http://a:1".to_owned()), (Key::Endpoint, "http://b:1".to_owned())];
        let with_style = [&both[..], &[(Key::VirtualHostedStyleRequest, "1".to_owned())]].concat();
        assert_eq!(fitting("lake", &with_style).unwrap(), [(Key::S3Endpoint, "http://lake.a:1".to_owned())]);
    }

    #[test]
    fn an_endpoint_that_leads_elsewhere_is_refused() {
        for (endpoint, style, words) in [
            ("https://lake.s3.eu-west-1.amazonaws.com", None, "leave it out of the endpoint"),
            ("https://lake.s3.eu-west-1.amazonaws.com", Some("false"), "leave it out of the endpoint"),
            ("http://lake.localhost:9000", None, "`virtual_hosted_style_request`"),
            ("http://minio:9000/lake", None, "name it twice"),
            ("http://minio:9000/lake/", Some("false"), "name it twice"),
            ("minio:9000", None, "without a scheme"),
            ("me:S3CRET@minio:9000", None, "has no scheme"),
            ("http://me:S3CRET@minio:9000", None, "a password"),
            ("ftp://minio", None, "begin it with http"),
            ("http://127.0.0.1:99999", None, "port"),
            ("https://minio/?X-Amz-Signature=S3CRET", None, "a query"),
        ] {
            let error = fit(endpoint, style).unwrap_err();
            assert!(error.message().contains(words) && !error.message().contains("S3CRET"), "{endpoint}: {error}");
        }
    }
}
