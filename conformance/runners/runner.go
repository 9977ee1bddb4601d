// Answers conformance cases: one JSON object a line in, one a line out.
//
//	delayline-bench conformance go run conformance/runners/runner.go
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

func checkApp(app string) error {
	if len(app) < 1 || len(app) > 150 {
		return errors.New("an app key is 1 to 150 bytes long")
	}
	for _, word := range strings.Split(app, ".") {
		if word == "" || word == "~" {
			return errors.New("no word of an app key is empty or `~`")
		}
	}
	bad := func(c rune) bool { return strings.ContainsRune("*#", c) || unicode.IsSpace(c) || unicode.IsControl(c) }
	if strings.IndexFunc(app, bad) >= 0 {
		return errors.New("an app key has no `*`, `#`, white space or control characters")
	}
	return nil
}

func routingKey(delay any, app string) (string, error) {
	seconds, isNumber := delay.(float64)
	if !isNumber || !(seconds >= 0 && seconds <= 1<<28-1) {
		return "", errors.New("a delay is 0 to 268,435,455 seconds")
	}
	key := "delay."
	for shift := 24; shift >= 0; shift -= 4 {
		key += fmt.Sprintf("%04b.", uint32(math.Ceil(seconds))>>shift&15)
	}
	return key + app, checkApp(app)
}

var (
	form    = regexp.MustCompile(`(?s)^delay((?:\.[01]{4}){7})\.(.+)$`)
	delayed = regexp.MustCompile(`(?s)^delay(?:\.[01]{4}){7}\.(.+?)(?:\.~\.[A-Za-z0-9_-]{1,64})?$`)
	idForm  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
)

func recall(delay any, app, id string) (map[string]any, error) {
	if !idForm.MatchString(id) {
		return nil, errors.New("an id is 1 to 64 of A-Z, a-z, 0-9, `_` and `-`")
	}
	key, err := routingKey(delay, app)
	key += ".~." + id
	if err == nil && len(key) > 255 {
		err = errors.New("the routing key is longer than 255 bytes")
	}
	return map[string]any{"key": key, "exchange": "delay.recall." + app, "queue": "delay.recalled." + app}, err
}

func appOf(key string) string {
	if found := delayed.FindStringSubmatch(key); found != nil {
		return found[1]
	}
	return key
}

func answer(question map[string]any) (map[string]any, error) {
	app, _ := question["app"].(string)
	switch question["question"] {
	case "key":
		key, err := routingKey(question["seconds"], app)
		return map[string]any{"key": key}, err
	case "decode":
		found := form.FindStringSubmatch(question["key"].(string))
		if found == nil {
			return nil, errors.New("a routing key is `delay`, seven words of four bits, and an app key")
		}
		seconds, _ := strconv.ParseUint(strings.ReplaceAll(found[1], ".", ""), 2, 28)
		return map[string]any{"seconds": seconds, "app": found[2]}, checkApp(found[2])
	case "recall":
		return recall(question["seconds"], app, question["id"].(string))
	case "retry":
		found := appOf(question["key"].(string))
		return map[string]any{"app": found}, checkApp(found)
	default:
		return map[string]any{"pattern": "delay." + strings.Repeat("*.", 7) + app}, checkApp(app)
	}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	output := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var question map[string]any
		if err := json.Unmarshal(lines.Bytes(), &question); err != nil {
			panic(err)
		}
		said, err := answer(question)
		if err != nil {
			said = map[string]any{"error": err.Error()}
		}
		output.Encode(said)
	}
}
