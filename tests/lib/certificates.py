"""Certificates for servers that tests start on loopback."""

import os
import subprocess


def make_certificates(folder):
    """A CA, and with it the certificate of a broker: broker.key, broker.crt, and both in broker.pem. The CA's file."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    with open(os.path.join(folder, "names"), "w") as file:
        file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *new_key, "-subj", "/CN=broker", "-keyout", "broker.key", "-out", "broker.csr")
    openssl("x509", "-req", "-in", "broker.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names",
            "-out", "broker.crt")
    with open(os.path.join(folder, "broker.pem"), "w") as out:
        for name in ("broker.key", "broker.crt"):
            with open(os.path.join(folder, name)) as file:
                out.write(file.read())
    return os.path.join(folder, "ca.pem")
