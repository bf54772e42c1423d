// A client that opens many connections to a web server before its first request, and compares every answer with the first one.
// Built with CGO_ENABLED=0 it is static: no library of C, and so no preload, is part of it.
//
//	crowd HOST:PORT CONNECTIONS ROUNDS PATH COUNTERS
//
// It prints the page COUNTERS, read while all connections are open, and the number of equal answers with their digest.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

type client struct {
	connection net.Conn
	reader     *bufio.Reader
}

func dial(address string) (*client, error) {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &client{connection, bufio.NewReader(connection)}, nil
}

// get returns the body of a page, and leaves the connection open.
func (c *client) get(path string) ([]byte, error) {
	if _, err := fmt.Fprintf(c.connection, "GET %s HTTP/1.1\r\nHost: crowd\r\n\r\n", path); err != nil {
		return nil, err
	}
	status, err := c.reader.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(status, "HTTP/1.1 200 ") {
		return nil, fmt.Errorf("%s", status)
	}
	length := -1
	for {
		line, err := c.reader.ReadString('\n')
		if err != nil {
			return nil, err
		}
		line = strings.TrimSpace(line)
		if line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		if strings.EqualFold(name, "Content-Length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return nil, err
			}
		}
	}
	if length < 0 {
		return nil, fmt.Errorf("no Content-Length")
	}
	body := make([]byte, length)
	_, err = io.ReadFull(c.reader, body)
	return body, err
}

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "crowd: %s: %v\n", what, err)
	os.Exit(1)
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil {
		fail("arguments", err)
	}
	return value
}

// all runs a function for each client at once, and ends the program at the first failure.
func all(count int, run func(int) error) {
	var group sync.WaitGroup
	for i := 0; i < count; i++ {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			if err := run(i); err != nil {
				fail(fmt.Sprintf("connection %d", i), err)
			}
		}(i)
	}
	group.Wait()
}

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: crowd HOST:PORT CONNECTIONS ROUNDS PATH COUNTERS")
		os.Exit(2)
	}
	address, count, rounds, path := os.Args[1], number(os.Args[2]), number(os.Args[3]), os.Args[4]
	clients := make([]*client, count)
	all(count, func(i int) (err error) {
		clients[i], err = dial(address)
		return
	})
	expected, err := clients[0].get(path)
	if err != nil {
		fail("the first request", err)
	}
	for round := 0; round < rounds; round++ {
		all(count, func(i int) error {
			body, err := clients[i].get(path)
			if err == nil && !bytes.Equal(body, expected) {
				err = fmt.Errorf("another answer than the first one")
			}
			return err
		})
	}
	counters, err := clients[0].get(os.Args[5])
	if err != nil {
		fail("the counters", err)
	}
	fmt.Printf("%s\n%d answers of %x\n", counters, count*rounds, sha256.Sum256(expected))
}
